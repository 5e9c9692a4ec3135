// Every matrix product of the kernels: C = alpha * A B, or added to C.
//
// The microkernel keeps a tile of 6 rows x PANEL columns of C in registers (12 of 16 with AVX2, 24 of 32 with AVX512)
// and walks along the depth: a step loads one row of B's panel and broadcasts six numbers of A. Since A is only ever
// read a number at a time, it may lie in either order:
//
//     a[row * stride + step]    or, its transpose without transposing anything,    a[step * stride + row]
//
// and B needs nothing but contiguous rows. So neither K nor V is ever repacked. There are three products:
//
//     SCORES        [key][query] = K Q^T               A: K as it lies         B: Q^T, packed once for a block
//     OVER_QUERIES  [key][channel] = tile * rows       A: a tile as it lies    B: Q or dOut as it lies (dK, dV)
//     OVER_KEYS     [query][channel] = tile^T * rows   A: a tile, transposed   B: K or V as it lies (out, dQ)
//
// where a tile is [key][query], scores or what became of them.
//
// Under the causal rule half of the tile on the diagonal is hidden: query q sees the keys k <= q + diagonal. What lies
// wholly beyond it is not computed (SCORES leaves it unwritten) and not read (it must be 0 between the diagonal and the
// edge of a microkernel's tile).
//
// What is read again has to stay in the level 1 cache, where rows that lie a power of two apart (heads side by side in
// memory) crowd into few places. So SCORES takes STRIPE keys at a time past the whole of Q^T, and the other two copy a
// panel of B (depth x PANEL) together before the rows of A pass by. Such rows lie further apart than the processor's own
// prefetching looks, so both ask for what comes next before they multiply: 4 to 13 % from 1024 keys on.
#pragma once
#include <algorithm>

#include "vector.h"

constexpr int PANEL = LANES / 4;  // in registers
constexpr int TILE_ROWS = 6;

enum Kind { SCORES, OVER_QUERIES, OVER_KEYS };
constexpr int64_t NO_DIAGONAL = 1 << 30;

// A function of its own each, so that the compiler gives its registers to the tile and not to the loops around it.
template <class N, Kind KIND, int R, int VECS>
__attribute__((noinline)) static void tile(int depth, const float* a, int64_t a_stride, const float* b,
                                           int64_t b_stride, float* c, int64_t c_stride, float alpha, bool add) {
    constexpr bool TRANSPOSED = KIND == OVER_KEYS;
    vec acc[R][VECS] = {};
    // Two pointers reach six rows with the processor's address arithmetic; more would spill.
    const float *low = a, *high = a + 3 * (TRANSPOSED ? 1 : a_stride);
    for (int step = 0; step < depth; step++) {
        vec row[VECS];
#pragma GCC unroll 4
        for (int j = 0; j < VECS; j++) row[j] = load(b + j * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            const int64_t at = (r % 3) * (TRANSPOSED ? 1 : a_stride);
            const vec x = splat((r < 3 ? low : high)[at]);
#pragma GCC unroll 4
            for (int j = 0; j < VECS; j++) acc[r][j] = N::multiply_add(x, row[j], acc[r][j]);
        }
        low += TRANSPOSED ? a_stride : 1;
        high += TRANSPOSED ? a_stride : 1;
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
template <class N, Kind KIND, int VECS>
static void panel(int rows, int whole_depth, const float* a, int64_t a_stride, const float* whole_b, int64_t b_stride,
                  float* c, int64_t c_stride, float alpha, bool add, int64_t diagonal) {
    for (int r = 0; r < rows;) {
        const int left = rows - r;
        const int take = left == 7 || left == 8 ? 4 : std::min(left, TILE_ROWS);
        const float *from = a + r * (KIND == OVER_KEYS ? 1 : a_stride), *b = whole_b;
        float* to = c + r * c_stride;
        int depth = whole_depth;
        if (KIND == OVER_KEYS)
            depth = int(std::clamp<int64_t>((diagonal + r + take + N::PER_UNIT - 1) / N::PER_UNIT, 0, depth));
        if (KIND == OVER_QUERIES) {
            const int hidden = int(std::clamp<int64_t>((r - diagonal) / N::PER_UNIT, 0, depth));
            from += hidden, b += hidden * b_stride, depth -= hidden;
        }
        switch (take) {
            case 6: tile<N, KIND, 6, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add); break;
            case 5: tile<N, KIND, 5, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add); break;
            case 4: tile<N, KIND, 4, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add); break;
            case 3: tile<N, KIND, 3, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add); break;
            case 2: tile<N, KIND, 2, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add); break;
            default: tile<N, KIND, 1, VECS>(depth, from, a_stride, b, b_stride, to, c_stride, alpha, add);
        }
        r += take;
    }
}

constexpr int STRIPE = 2 * TILE_ROWS;
constexpr int MOST_ROWS = 128, MOST_DEPTH = 128;  // of a product over keys or queries

// A panel whose rows of B are far apart, by way of a copy where enough rows of A use it.
template <class N, Kind KIND, int VECS>
static void gathered_panel(int rows, int depth, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                           float* c, int64_t c_stride, float alpha, bool add, int64_t diagonal) {
    constexpr int WIDTH = VECS * LANES, FAR = 128;
    if (rows <= STRIPE || b_stride < FAR) {
        panel<N, KIND, VECS>(rows, depth, a, a_stride, b, b_stride, c, c_stride, alpha, add, diagonal);
        return;
    }
    alignas(64) float together[MOST_DEPTH * WIDTH];
    for (int step = 0; step < depth; step++) {
        for (int j = 0; j < WIDTH; j += LANES) store(together + step * WIDTH + j, load(b + step * b_stride + j));
        __builtin_prefetch(b + step * b_stride + WIDTH);
    }
    panel<N, KIND, VECS>(rows, depth, a, a_stride, together, WIDTH, c, c_stride, alpha, add, diagonal);
}

// The last columns, fewer than a register holds: through copies that are padded with zeros.
template <class N, Kind KIND>
static void last_columns(int rows, int columns, int depth, const float* a, int64_t a_stride, const float* b,
                         int64_t b_stride, float* c, int64_t c_stride, float alpha, bool add, int64_t diagonal) {
    alignas(64) float padded_b[MOST_DEPTH * LANES], padded_c[MOST_ROWS * LANES];
    for (int step = 0; step < depth; step++) {
        for (int j = 0; j < LANES; j++) padded_b[step * LANES + j] = j < columns ? b[step * b_stride + j] : 0.0f;
    }
    panel<N, KIND, 1>(rows, depth, a, a_stride, padded_b, LANES, padded_c, LANES, alpha, false, diagonal);
    for (int r = 0; r < rows; r++) {
        for (int j = 0; j < columns; j++) {
            float& to = c[r * c_stride + j];
            to = padded_c[r * LANES + j] + (add ? to : 0.0f);
        }
    }
}

// SCORES of a stripe of keys: `columns` fills registers.
template <class N>
static void scores(int rows, int columns, int depth, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                   float* c, int64_t c_stride, float alpha, bool add, int64_t diagonal) {
    constexpr int WIDTH = PANEL * LANES;
    int done = 0;
    const auto visible = [&](int width) { return int(std::clamp<int64_t>(diagonal + done + width, 0, rows)); };
    for (; done + WIDTH <= columns; done += WIDTH)
        panel<N, SCORES, PANEL>(visible(WIDTH), depth, a, a_stride, b + done, b_stride, c + done, c_stride, alpha, add,
                                diagonal);
    for (; PANEL > 2 && done + 2 * LANES <= columns; done += 2 * LANES)
        panel<N, SCORES, 2>(visible(2 * LANES), depth, a, a_stride, b + done, b_stride, c + done, c_stride, alpha, add,
                            diagonal);
    for (; done < columns; done += LANES)
        panel<N, SCORES, 1>(visible(LANES), depth, a, a_stride, b + done, b_stride, c + done, c_stride, alpha, add,
                            diagonal);
}

// C[rows, columns] (row stride c_stride) = alpha * A[rows, depth] B[depth, columns] (+ C); depth, and the strides of A
// and B, in the units of N (see numbers.h).
template <class N, Kind KIND>
static void product(int rows, int columns, int depth, const float* a, int64_t a_stride, const float* b,
                    int64_t b_stride, float* c, int64_t c_stride, float alpha, bool add, int64_t diagonal) {
    if constexpr (KIND == SCORES) {
        for (int r = 0; r < rows; r += STRIPE) {
            const float* next = a + (r + STRIPE) * a_stride;
            for (int i = 0; i < STRIPE; i++) {
                for (int at = 0; at < depth; at += LINE) __builtin_prefetch(next + i * a_stride + at);
            }
            scores<N>(std::min(STRIPE, rows - r), columns, depth, a + r * a_stride, a_stride, b, b_stride,
                      c + r * c_stride, c_stride, alpha, add, diagonal - r);
        }
    } else {
        constexpr int WIDTH = PANEL * LANES;
        int done = 0;
        for (; done + WIDTH <= columns; done += WIDTH)
            gathered_panel<N, KIND, PANEL>(rows, depth, a, a_stride, b + done, b_stride, c + done, c_stride, alpha, add,
                                           diagonal);
        for (; PANEL > 2 && done + 2 * LANES <= columns; done += 2 * LANES)
            gathered_panel<N, KIND, 2>(rows, depth, a, a_stride, b + done, b_stride, c + done, c_stride, alpha, add,
                                       diagonal);
        for (; done + LANES <= columns; done += LANES)
            gathered_panel<N, KIND, 1>(rows, depth, a, a_stride, b + done, b_stride, c + done, c_stride, alpha, add,
                                       diagonal);
        if (done < columns)
            last_columns<N, KIND>(rows, columns - done, depth, a, a_stride, b + done, b_stride, c + done, c_stride,
                                  alpha, add, diagonal);
    }
}
