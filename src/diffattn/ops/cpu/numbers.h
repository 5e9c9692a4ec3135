// What the products multiply: floats, or pairs of bfloat16.
//
// A processor with bfloat16 instructions multiplies two pairs and adds both products to a float, so that a 4-byte unit
// is worth two steps along the depth of a product. The kernels are written once, for units: `Floats` has a float in
// each, `Pairs` two bfloat16 that are neighbours along the depth, rounded from floats where they are not given.
// Everything but the products (softmax, sums over rows, the norm, accumulation) is in floats either way.
//
// What an operand must look like depends on where the depth runs:
//
//     along(...)     rows as they lie in memory, the depth along their width
//     across(...)    the depth across the rows: rows 2i and 2i + 1 interleaved
//
// and so for a tile [key][query] of floats: `tile_over_keys` pairs its rows in place, `tile_over_queries` its columns.
// Without bfloat16 instructions operands in bfloat16 are widened and `Floats` multiplies them; `Pairs` can be compiled
// all the same, with its instruction spelled out, to be tested.
#pragma once
#include "block.h"

struct Floats {
    static constexpr int PER_UNIT = 1;

    static vec multiply_add(vec x, vec y, vec total) { return x * y + total; }

    static FloatRows along(const Call& call, const Operand& x, int64_t b, int64_t head, int64_t position, int count,
                           int64_t width, float* buffer) {
        return float_rows(call, x, b, head, position, count, width, buffer);
    }
    static FloatRows across(const Call& call, const Operand& x, int64_t b, int64_t head, int64_t position, int count,
                            int64_t width, float* buffer) {
        return float_rows(call, x, b, head, position, count, width, buffer);
    }
    static FloatRows along(FloatRows rows, int, int64_t, float*) { return rows; }
    static FloatRows across(FloatRows rows, int, int64_t, float*) { return rows; }

    static void tile_over_keys(float*, int) {}
    static const float* tile_over_queries(const float* tile, int, float*) { return tile; }
};

// Two floats a lane, rounded to bfloat16 and put into one unit; NaN stays NaN.
static inline vec unit_of(vec low, vec high) {
    const auto rounded = [](vec x) {
        const uvec bits = (uvec)x;
        const uvec nearest = bits + 0x7fffu + ((bits >> 16) & 1u);
        return (uvec)(x == x ? (vec)nearest : (vec)(bits | 0x400000u));
    };
    return (vec)((rounded(low) >> 16) | (rounded(high) & 0xffff0000u));
}

struct Pairs {
    static constexpr int PER_UNIT = 2;

    static vec multiply_add(vec x, vec y, vec total) {
#ifdef __AVX512BF16__
        return (vec)_mm512_dpbf16_ps((__m512)total, (__m512bh)x, (__m512bh)y);
#else
        const uvec a = (uvec)x, b = (uvec)y;
        return (vec)(a & 0xffff0000u) * (vec)(b & 0xffff0000u) + ((vec)(a << 16) * (vec)(b << 16) + total);
#endif
    }

    static FloatRows along(const Call&, const Operand& x, int64_t b, int64_t head, int64_t position, int count,
                           int64_t width, float* buffer) {
        const uint16_t* from =
            static_cast<const uint16_t*>(x.data) + b * x.batch + head * x.head + position * x.position;
        if (x.position % 2 == 0 && width % 2 == 0 && reinterpret_cast<uintptr_t>(from) % 4 == 0)
            return {reinterpret_cast<const float*>(from), x.position / 2};
        const int64_t units = (width + 1) / 2;
        for (int r = 0; r < count; r++) {
            buffer[r * units + units - 1] = 0.0f;
            std::memcpy(buffer + r * units, from + r * x.position, width * sizeof(uint16_t));
        }
        return {buffer, units};
    }

    static FloatRows across(const Call&, const Operand& x, int64_t b, int64_t head, int64_t position, int count,
                            int64_t width, float* buffer) {
        const uint16_t* from =
            static_cast<const uint16_t*>(x.data) + b * x.batch + head * x.head + position * x.position;
        for (int r = 0; r < count; r += 2) {
            const uint16_t *low = from + r * x.position, *high = low + x.position;
            uint32_t* units = reinterpret_cast<uint32_t*>(buffer + r / 2 * width);
            if (r + 1 < count) {
                for (int64_t i = 0; i < width; i++) units[i] = low[i] | uint32_t(high[i]) << 16;
            } else {
                for (int64_t i = 0; i < width; i++) units[i] = low[i];
            }
        }
        return {buffer, width};
    }

    static FloatRows along(FloatRows rows, int count, int64_t width, float* buffer) {
        const int64_t units = (width + 1) / 2;
        for (int r = 0; r < count; r++) {
            uint16_t* to = reinterpret_cast<uint16_t*>(buffer + r * units);
            for (int64_t i = 0; i < width; i++) to[i] = to_bfloat16(rows.data[r * rows.stride + i]);
            if (width % 2) to[width] = 0;
        }
        return {buffer, units};
    }

    static FloatRows across(FloatRows rows, int count, int64_t width, float* buffer) {
        for (int r = 0; r < count; r += 2) {
            const float *low = rows.data + r * rows.stride, *high = low + rows.stride;
            uint32_t* units = reinterpret_cast<uint32_t*>(buffer + r / 2 * width);
            for (int64_t i = 0; i < width; i++)
                units[i] = to_bfloat16(low[i]) | (r + 1 < count ? uint32_t(to_bfloat16(high[i])) << 16 : 0);
        }
        return {buffer, width};
    }

    static void tile_over_keys(float* tile, int keys) {
        for (int k = 0; k < keys; k += 2) {
            for (int q = 0; q < BLOCK; q += LANES) {
                const float* from = tile + k * BLOCK + q;
                store(tile + k / 2 * BLOCK + q, unit_of(load(from), k + 1 < keys ? load(from + BLOCK) : vec{}));
            }
        }
    }

    // Into `units`, rows of BLOCK units of which the first half is filled; `units` may be the tile itself.
    static const float* tile_over_queries(const float* tile, int keys, float* units) {
        for (int k = 0; k < keys; k++) {
            uint16_t row[BLOCK];
            for (int q = 0; q < BLOCK; q++) row[q] = to_bfloat16(tile[k * BLOCK + q]);
            std::memcpy(units + k * BLOCK, row, sizeof row);
        }
        return units;
    }
};

// Units that hold `count` numbers along the depth.
template <class N>
static inline int units(int64_t count) {
    return int((count + N::PER_UNIT - 1) / N::PER_UNIT);
}

#if defined(__AVX512BF16__) || defined(DIFFATTN_PAIRS)
typedef Pairs Narrow;
#else
typedef Floats Narrow;
#endif
