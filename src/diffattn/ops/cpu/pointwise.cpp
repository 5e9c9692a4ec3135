// What stands between the matrix products of a training step, each in one pass over memory forward and one backward.
//
// Such work is bound by memory, by the number of passes and, for small tensors, by the cost of a call: a norm that
// takes torch five kernels forward and eight backward takes one here. Arithmetic is float whatever the dtype; a
// bfloat16 is widened when it is read and rounded once when it is written. Sums over a row run in an order that depends
// on the width alone, and sums over rows in parts of a fixed number of rows, so that threads change no bit.
#include "pointwise.h"

#include <algorithm>
#include <type_traits>

#include "kernel.h"
#include "vector.h"

namespace {

// Fewer elements than this are not worth another thread.
constexpr int64_t ELEMENTS_OF_A_THREAD = 16384;
constexpr int64_t ROWS_OF_A_PART = 64;

int team(int64_t elements, int32_t threads) {
    return int(std::clamp<int64_t>(elements / ELEMENTS_OF_A_THREAD, 1, threads));
}

vec read(const float* from) { return load(from); }
void write(float* to, vec x) { store(to, x); }

vec read(const uint16_t* from) {
    vec x;
    for (int i = 0; i < LANES; i++) x[i] = from_bfloat16(from[i]);
    return x;
}

void write(uint16_t* to, vec x) {
    for (int i = 0; i < LANES; i++) to[i] = to_bfloat16(x[i]);
}

// The last lanes of a row, 0 behind its end.
template <class T>
vec read(const T* from, int64_t count) {
    T lanes[LANES] = {};
    std::copy_n(from, std::min<int64_t>(count, LANES), lanes);
    return read(lanes);
}

template <class T>
void write(T* to, vec x, int64_t count) {
    T lanes[LANES];
    write(lanes, x);
    std::copy_n(lanes, std::min<int64_t>(count, LANES), to);
}

// Calls `work(from, count)` for each register of a row; `count` is LANES but for the last.
template <class Work>
inline void each(int64_t width, Work work) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) work(i, std::integral_constant<int64_t, LANES>());
    if (i < width) work(i, width - i);
}
template <class T>
vec read(const T* from, std::integral_constant<int64_t, LANES>) {
    return read(from);
}
template <class T>
void write(T* to, vec x, std::integral_constant<int64_t, LANES>) {
    write(to, x);
}

template <class T>
void norm_forward(const T* x, const float* weight, T* out, float* inverse_root, int64_t rows, int64_t width, float eps,
                  int32_t threads) {
#pragma omp parallel for num_threads(team(rows* width, threads)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const T* from = x + row * width;
        T* to = out + row * width;
        vec squares{};
        each(width, [&](int64_t i, auto count) {
            const vec value = read(from + i, count);
            squares += value * value;
        });
        const float inverse = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
        inverse_root[row] = inverse;
        each(width, [&](int64_t i, auto count) {
            write(to + i, read(from + i, count) * inverse * read(weight + i, count), count);
        });
    }
}

// With n = x * inverse and g = grad * weight: to_x = inverse * (g - n * mean(g * n)), to_weight = sum of grad * n.
template <class T>
void norm_backward(const T* x, const float* weight, const float* inverse_root, const T* grad, T* to_x, float* to_weight,
                   int64_t rows, int64_t width, int32_t threads) {
    const int64_t parts = diffattn_norm_parts(rows);
#pragma omp parallel for num_threads(team(rows* width, threads)) schedule(static)
    for (int64_t part = 0; part < parts; part++) {
        float* sums = to_weight + part * width;
        std::fill_n(sums, width, 0.0f);
        const int64_t end = std::min(rows, (part + 1) * ROWS_OF_A_PART);
        for (int64_t row = part * ROWS_OF_A_PART; row < end; row++) {
            const T *from = x + row * width, *of_out = grad + row * width;
            T* to = to_x + row * width;
            const float inverse = inverse_root[row];
            vec products{};
            each(width, [&](int64_t i, auto count) {
                const vec along = read(of_out + i, count) * read(from + i, count);
                products += along * read(weight + i, count);
                write(sums + i, read(sums + i, count) + along * inverse, count);
            });
            const float mean = sum(products) * inverse * inverse / float(width);
            each(width, [&](int64_t i, auto count) {
                const vec g = read(of_out + i, count) * read(weight + i, count);
                write(to + i, (g - read(from + i, count) * mean) * inverse, count);
            });
        }
    }
}

inline vec sigmoid(vec x) {
    const vec small = exponential(x < 0.0f ? x : -x);
    return (x < 0.0f ? small : splat(1.0f)) / (small + 1.0f);
}

// `work(from, count)` for each register of `total` elements, shared among threads.
template <class Work>
void spread(int64_t total, int32_t threads, Work work) {
    const int64_t piece = ELEMENTS_OF_A_THREAD / 4;
#pragma omp parallel for num_threads(team(total, threads)) schedule(static)
    for (int64_t first = 0; first < total; first += piece)
        each(std::min(piece, total - first), [&](int64_t i, auto count) { work(first + i, count); });
}

template <class T>
void swiglu_forward(const T* gate, const T* up, T* out, int64_t total, int32_t threads) {
    spread(total, threads, [=](int64_t i, auto count) {
        const vec g = read(gate + i, count);
        write(out + i, g * sigmoid(g) * read(up + i, count), count);
    });
}

template <class T>
void swiglu_backward(const T* gate, const T* up, const T* grad, T* to_gate, T* to_up, int64_t total, int32_t threads) {
    spread(total, threads, [=](int64_t i, auto count) {
        const vec g = read(gate + i, count), of_out = read(grad + i, count), s = sigmoid(g);
        write(to_up + i, of_out * g * s, count);
        write(to_gate + i, of_out * read(up + i, count) * s * (1.0f + g * (1.0f - s)), count);
    });
}

// Lanes 2i and 2i + 1 in each other's place.
inline vec swapped(vec x) {
    ivec other;
    for (int i = 0; i < LANES; i++) other[i] = i ^ 1;
    return __builtin_shuffle(x, other);
}

template <class T>
void rotary(const T* x, const int64_t* x_strides, T* out, const int64_t* out_strides, const float* cos,
            const float* sin, int64_t table_batch, bool backwards, int64_t batch, int64_t heads, int64_t positions,
            int64_t width, int64_t turned, int32_t threads) {
    const float sign = backwards ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(team(batch * heads * positions * width, threads)) schedule(static)
    for (int64_t at = 0; at < batch * positions; at++) {
        const int64_t b = at / positions, t = at % positions;
        const int64_t table = (b * table_batch + t * turned) / 2;
        // (c, c) and (-s, s) beside each other, so that a pair turns as x * c + swapped(x) * s, for all heads alike.
        constexpr int64_t PIECE = 8 * LANES;
        float c[PIECE], s[PIECE];
        for (int64_t first = 0; first < turned; first += PIECE) {
            const int64_t channels = std::min(PIECE, turned - first);
            for (int64_t i = 0; i < channels / 2; i++) {
                c[2 * i] = c[2 * i + 1] = cos[table + first / 2 + i];
                s[2 * i + 1] = sign * sin[table + first / 2 + i];
                s[2 * i] = -s[2 * i + 1];
            }
            for (int64_t h = 0; h < heads; h++) {
                const T* from = x + b * x_strides[0] + h * x_strides[1] + t * x_strides[2] + first;
                T* to = out + b * out_strides[0] + h * out_strides[1] + t * out_strides[2] + first;
                each(channels, [&](int64_t i, auto count) {
                    const vec value = read(from + i, count);
                    write(to + i, value * read(c + i, count) + swapped(value) * read(s + i, count), count);
                });
            }
        }
        for (int64_t h = 0; h < heads && turned < width; h++) {
            const T* from = x + b * x_strides[0] + h * x_strides[1] + t * x_strides[2];
            T* to = out + b * out_strides[0] + h * out_strides[1] + t * out_strides[2];
            std::copy(from + turned, from + width, to + turned);
        }
    }
}

}  // namespace

void diffattn_norm_forward(int32_t dtype, const void* x, const float* weight, void* out, float* inverse_root,
                           int64_t rows, int64_t width, float eps, int32_t threads) {
    if (dtype == FLOAT32)
        norm_forward((const float*)x, weight, (float*)out, inverse_root, rows, width, eps, threads);
    else
        norm_forward((const uint16_t*)x, weight, (uint16_t*)out, inverse_root, rows, width, eps, threads);
}

int64_t diffattn_norm_parts(int64_t rows) { return (rows + ROWS_OF_A_PART - 1) / ROWS_OF_A_PART; }

void diffattn_norm_backward(int32_t dtype, const void* x, const float* weight, const float* inverse_root,
                            const void* grad, void* to_x, float* to_weight, int64_t rows, int64_t width,
                            int32_t threads) {
    if (dtype == FLOAT32)
        norm_backward((const float*)x, weight, inverse_root, (const float*)grad, (float*)to_x, to_weight, rows, width,
                      threads);
    else
        norm_backward((const uint16_t*)x, weight, inverse_root, (const uint16_t*)grad, (uint16_t*)to_x, to_weight, rows,
                      width, threads);
}

void diffattn_swiglu_forward(int32_t dtype, const void* gate, const void* up, void* out, int64_t count,
                             int32_t threads) {
    if (dtype == FLOAT32)
        swiglu_forward((const float*)gate, (const float*)up, (float*)out, count, threads);
    else
        swiglu_forward((const uint16_t*)gate, (const uint16_t*)up, (uint16_t*)out, count, threads);
}

void diffattn_swiglu_backward(int32_t dtype, const void* gate, const void* up, const void* grad, void* to_gate,
                              void* to_up, int64_t count, int32_t threads) {
    if (dtype == FLOAT32)
        swiglu_backward((const float*)gate, (const float*)up, (const float*)grad, (float*)to_gate, (float*)to_up, count,
                        threads);
    else
        swiglu_backward((const uint16_t*)gate, (const uint16_t*)up, (const uint16_t*)grad, (uint16_t*)to_gate,
                        (uint16_t*)to_up, count, threads);
}

void diffattn_rotary(int32_t dtype, const void* x, const int64_t* x_strides, void* out, const int64_t* out_strides,
                     const float* cos, const float* sin, int64_t table_batch, int32_t backwards, int64_t batch,
                     int64_t heads, int64_t positions, int64_t width, int64_t turned, int32_t threads) {
    if (dtype == FLOAT32)
        rotary((const float*)x, x_strides, (float*)out, out_strides, cos, sin, table_batch, backwards, batch, heads,
               positions, width, turned, threads);
    else
        rotary((const uint16_t*)x, x_strides, (uint16_t*)out, out_strides, cos, sin, table_batch, backwards, batch,
               heads, positions, width, turned, threads);
}
