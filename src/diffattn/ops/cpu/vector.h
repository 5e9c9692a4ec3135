// One register of floats, and what else the kernels need of the processor. Everything here compiles for 8 lanes (AVX2)
// and for 16 (AVX512) from the same lines: the compiler's vector types carry the arithmetic. With DIFFATTN_WIDE it is 16
// on any processor, so that the wide kernels can be tested where there is no AVX512.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(DIFFATTN_WIDE)
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
constexpr int LINE = 16;  // floats in a cache line

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef float unaligned_vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4)));

static inline vec load(const float* from) { return *reinterpret_cast<const unaligned_vec*>(from); }
static inline void store(float* to, vec x) { *reinterpret_cast<unaligned_vec*>(to) = x; }

// Every bit as it is: the float may stand for something else.
static inline vec splat(float x) {
#ifdef __AVX512F__
    return (vec)_mm512_set1_ps(x);
#elif defined(DIFFATTN_WIDE)
    vec all;
    for (int i = 0; i < LANES; i++) all[i] = x;
    return all;
#else
    return (vec)_mm256_set1_ps(x);
#endif
}

// The larger one; the second operand where the first is NaN, so that a NaN logit never becomes a row's maximum (it
// reaches the row's sum instead).
static inline vec larger(vec x, vec otherwise) {
#ifdef __AVX512F__
    return (vec)_mm512_max_ps((__m512)x, (__m512)otherwise);
#elif defined(DIFFATTN_WIDE)
    return x > otherwise ? x : otherwise;
#else
    return (vec)_mm256_max_ps((__m256)x, (__m256)otherwise);
#endif
}

static inline float sum(vec x) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)x);
#elif defined(DIFFATTN_WIDE)
    float total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
#else
    __m128 half = _mm256_castps256_ps128((__m256)x) + _mm256_extractf128_ps((__m256)x, 1);
    half += _mm_movehl_ps(half, half);
    return half[0] + half[1];
#endif
}

// e^x for x <= 0: 2^n * 2^f with n whole and |f| <= 1/2, 2^f by a polynomial of relative error 2e-9, fitted with its
// value at 0 fixed, so that e^0 is exactly 1. Exactly 0 below 2^-126; NaN stays NaN.
static inline vec exponential(vec x) {
    const vec y = x * 1.44269504f;
    const vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number, kept in the low bits
    const vec shifted = y + magic;
    const vec f = y - (shifted - magic);
    vec p = splat(1.5353362e-4f);
    p = p * f + 1.3398875e-3f;
    p = p * f + 9.6184374e-3f;
    p = p * f + 5.5503325e-2f;
    p = p * f + 2.4022648e-1f;
    p = p * f + 6.9314720e-1f;
    p = p * f + 1.0f;
    const vec power = (vec)(((uvec)shifted << 23) + (127u << 23));
    return y < -126.0f ? vec{} : p * power;
}

static inline float from_bfloat16(uint16_t x) {
    const uint32_t bits = uint32_t(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Rounds to nearest, ties to even; NaN stays NaN.
static inline uint16_t to_bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return uint16_t(bits >> 16) | 0x40;
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
