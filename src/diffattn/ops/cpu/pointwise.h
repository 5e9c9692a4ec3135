// The C interface of the fused elementwise kernels around the attention, in the style of kernel.h: `dtype` is its Dtype
// and says what x, out and gradients hold; weights, tables and statistics are float. Every element of a result is
// written. Results do not depend on the number of threads.
#pragma once
#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

// out = x / sqrt(mean(x^2) + eps) * weight over rows [N, W]; inverse_root [N] is kept for the backward pass.
void diffattn_norm_forward(int32_t dtype, const void* x, const float* weight, void* out, float* inverse_root,
                           int64_t rows, int64_t width, float eps, int32_t threads);

// Of rows like those, how many parts the weight's gradient is summed in.
int64_t diffattn_norm_parts(int64_t rows);
// to_weight [parts, W] is to be summed by the caller.
void diffattn_norm_backward(int32_t dtype, const void* x, const float* weight, const float* inverse_root,
                            const void* grad, void* to_x, float* to_weight, int64_t rows, int64_t width,
                            int32_t threads);

// out = silu(gate) * up.
void diffattn_swiglu_forward(int32_t dtype, const void* gate, const void* up, void* out, int64_t count,
                             int32_t threads);
void diffattn_swiglu_backward(int32_t dtype, const void* gate, const void* up, const void* grad, void* to_gate,
                              void* to_up, int64_t count, int32_t threads);

// Pair (2i, 2i + 1) of the first `turned` channels of x [B, H, T, D] by the angle i of cos and sin, contiguous
// [B or 1, T, turned / 2] (table_batch: twice the elements of a batch row, 0 where one row serves all); backwards: by
// minus that angle. The other channels are copied.
// Strides of x and out count elements: batch, head, position; the last axis has stride 1.
void diffattn_rotary(int32_t dtype, const void* x, const int64_t* x_strides, void* out, const int64_t* out_strides,
                     const float* cos, const float* sin, int64_t table_batch, int32_t backwards, int64_t batch,
                     int64_t heads, int64_t positions, int64_t width, int64_t turned, int32_t threads);
}
#pragma GCC visibility pop
