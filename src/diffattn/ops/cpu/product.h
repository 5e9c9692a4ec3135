// Every matrix product of the kernels: C = alpha * A B, or added to C.
//
// The microkernel keeps a tile of 6 rows x PANEL columns of C in registers (12 of 16 with AVX2, 24 of 32 with AVX512) and
// walks along the depth: a step loads one row of B's panel and broadcasts six numbers of A. Since A is only ever read a
// number at a time, it may lie in either order:
//
//     ROWS     a[row * stride + step]    keys, values or map entries as they lie in memory, one row a key
//     COLUMNS  a[step * stride + row]    the transpose of that, without transposing anything
//
// and B needs nothing but contiguous rows. So neither K nor V is ever repacked: scores are taken as
// [key][query] = K Q^T with Q^T packed once for a block of queries, and [key][query] is then both the A of the products
// over keys (out, dQ: COLUMNS) and that of the products over queries (dK, dV: ROWS).
//
// A panel of B (depth x PANEL) stays in the level 1 cache while all rows of A pass by.
#pragma once
#include <algorithm>

#include "vector.h"

#ifdef __AVX512F__
constexpr int PANEL = 4;  // in registers
#else
constexpr int PANEL = 2;
#endif
constexpr int TILE_ROWS = 6;

enum Order { ROWS, COLUMNS };

template <Order ORDER, int R, int VECS>
static inline void tile(int depth, const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c,
                        int64_t c_stride, float alpha, bool add) {
    vec acc[R][VECS] = {};
    // Two pointers reach six rows with the processor's address arithmetic; more would spill.
    const float *low = a, *high = a + 3 * (ORDER == ROWS ? a_stride : 1);
    for (int step = 0; step < depth; step++) {
        vec row[VECS];
#pragma GCC unroll 4
        for (int j = 0; j < VECS; j++) row[j] = load(b + j * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            const int64_t at = (r % 3) * (ORDER == ROWS ? a_stride : 1);
            const vec x = splat((r < 3 ? low : high)[at]);
#pragma GCC unroll 4
            for (int j = 0; j < VECS; j++) acc[r][j] += x * row[j];
        }
        low += ORDER == ROWS ? 1 : a_stride;
        high += ORDER == ROWS ? 1 : a_stride;
        b += b_stride;
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < VECS; j++) {
            float* to = c + r * c_stride + j * LANES;
            store(to, add ? acc[r][j] * alpha + load(to) : acc[r][j] * alpha);
        }
    }
}

// All rows of one panel. Remainders are split so that no tile is left with one or two rows where that can be avoided: a
// tile of few rows waits for its own additions.
template <Order ORDER, int VECS>
static void panel(int rows, int depth, const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c,
                  int64_t c_stride, float alpha, bool add) {
    for (int r = 0; r < rows;) {
        const int left = rows - r;
        const int take = left == 7 || left == 8 ? 4 : std::min(left, TILE_ROWS);
        const float* from = a + r * (ORDER == ROWS ? a_stride : 1);
        float* to = c + r * c_stride;
        switch (take) {
            case 6: tile<ORDER, 6, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add); break;
            case 5: tile<ORDER, 5, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add); break;
            case 4: tile<ORDER, 4, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add); break;
            case 3: tile<ORDER, 3, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add); break;
            case 2: tile<ORDER, 2, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add); break;
            default: tile<ORDER, 1, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add);
        }
        r += take;
    }
}

constexpr int MOST_ROWS = 128, MOST_DEPTH = 512;  // of a product whose last columns do not fill a register

// The last columns, fewer than a register holds: through copies that are padded with zeros.
template <Order ORDER>
static void last_columns(int rows, int columns, int depth, const float* a, int64_t a_stride, const float* b,
                         int64_t b_stride, float* c, int64_t c_stride, float alpha, bool add) {
    alignas(64) float padded_b[MOST_DEPTH * LANES], padded_c[MOST_ROWS * LANES];
    for (int step = 0; step < depth; step++) {
        for (int j = 0; j < LANES; j++) padded_b[step * LANES + j] = j < columns ? b[step * b_stride + j] : 0.0f;
    }
    panel<ORDER, 1>(rows, depth, a, a_stride, padded_b, LANES, padded_c, LANES, alpha, false);
    for (int r = 0; r < rows; r++) {
        for (int j = 0; j < columns; j++) {
            float& to = c[r * c_stride + j];
            to = padded_c[r * LANES + j] + (add ? to : 0.0f);
        }
    }
}

// C[rows, columns] (row stride c_stride) = alpha * A[rows, depth] B[depth, columns] (+ C).
template <Order ORDER>
static void product(int rows, int columns, int depth, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                    float* c, int64_t c_stride, float alpha, bool add) {
    int done = 0;
    for (; done + PANEL * LANES <= columns; done += PANEL * LANES)
        panel<ORDER, PANEL>(rows, depth, a, a_stride, b + done, b_stride, c + done, c_stride, alpha, add);
#ifdef __AVX512F__
    if (done + 2 * LANES <= columns) {
        panel<ORDER, 2>(rows, depth, a, a_stride, b + done, b_stride, c + done, c_stride, alpha, add);
        done += 2 * LANES;
    }
#endif
    if (done + LANES <= columns) {
        panel<ORDER, 1>(rows, depth, a, a_stride, b + done, b_stride, c + done, c_stride, alpha, add);
        done += LANES;
    }
    if (done < columns)
        last_columns<ORDER>(rows, columns - done, depth, a, a_stride, b + done, b_stride, c + done, c_stride, alpha, add);
}
