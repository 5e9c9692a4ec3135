// The C interface of the fused CPU kernels: plain numbers and raw pointers, so that one build serves every torch and
// every Python. `library.py` holds the same structs for ctypes.
//
// B batch, T queries, S keys, H output heads, G key/value groups (H % G == 0), D query/key width, E value width, M maps:
// one map is ordinary attention, two are differential attention:
//
//     out = (A1 - lam A2) v,   A = softmax(scale q k^T + mask),   and behind it, if asked for,   gain * RMSNorm(out) * weight
//
// Strides count elements. The last axis of every 4-dimensional operand has stride 1. A null pointer means "not given".
#pragma once
#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

enum Dtype : int32_t { FLOAT32 = 0, BFLOAT16 = 1 };
enum MaskKind : int32_t { NO_MASK = 0, BOOL_MASK = 1, FLOAT_MASK = 2 };

// A [batch, heads, positions, width] operand of the call's dtype.
struct Operand {
    void* data;
    int64_t batch, head, position;  // strides
};

struct Call {
    int32_t dtype, maps;
    int64_t batch, heads, groups, queries, keys, width, value_width;
    Operand q[2], k[2], v;  // k[1].data == k[0].data where the maps share their keys
    float scale;

    const float* lam;        // of two maps
    int64_t lam_strides[3];  // batch, head, query; 0 where it is broadcast
    const float* sink;       // [H]; of one map

    int32_t is_causal, mask_kind;
    int64_t window;            // 0: none
    const int64_t* documents;  // [B, S], contiguous
    const int64_t* lengths;    // [B]: keys from this index on do not exist
    const float* alibi;        // [H]
    const void* mask;          // bool (1 byte, true = may attend) or float32
    int64_t mask_strides[4];   // batch, head, query, key

    int32_t norm;         // 0: gain alone, 1: RMSNorm
    const float* weight;  // [E]
    float eps, gain;

    int32_t threads;
};

// What the forward pass leaves for the backward pass; all null where no gradient is wanted.
struct Saved {
    float* maximum;       // [M, B, H, T]: of the logits of a row (0 in a row that attends nothing)
    float* inverse_sum;   // [M, B, H, T]: 1 / sum exp(logit - maximum), the sink included (0 in such a row)
    float* before_norm;   // [B, H, T, E]: the result before the norm, unrounded; with a norm only
    float* inverse_root;  // [B, H, T]: 1 / sqrt(mean square + eps); with a norm only
};

struct Gradients {
    Operand out;            // in: of the result
    Operand q[2], k[2], v;  // of the operands, every element written; k[1] is not used where the maps share their keys
    // [M, B, H, T]: sum over keys of A * dA for each map; lam's gradient is -row_sums[1], and the sink's follows.
    float* row_sums;
    float* weight;  // [B, G, parts, E]: to be summed by the caller; null without weight
};

// Every element of `out` ([B, H, T, E]) and of `saved` is written.
void diffattn_forward(const Call* call, const Operand* out, const Saved* saved);

// How many partial sums over queries the backward pass keeps for each (batch, group): by shapes and threads only.
int64_t diffattn_parts(const Call* call);
void diffattn_backward(const Call* call, const Saved* saved, const Gradients* gradients);

// The forward pass for few queries on many keys, parallel over keys; the norm included, nothing saved.
void diffattn_decode(const Call* call, const Operand* out);

// Of the sources that this library was built from, as `library.py` computes it.
const char* diffattn_source_hash();
// The instruction set it was compiled for: "avx2", "avx512" or "avx512_bf16".
const char* diffattn_isa();
// Cycles a second of the core that calls, measured now: what the system reports is often the lowest clock, not this one.
double diffattn_clock();
}
#pragma GCC visibility pop
