// What forward, backward and decoding share: scratch memory, operands as rows of floats, packing, a tile's softmax.
#pragma once
#include <cstdlib>

#include "product.h"
#include "visible.h"

// Memory of one thread that is kept from call to call, so that no call pays for fresh pages; given back above 64 MB.
class Scratch {
  public:
    ~Scratch() { std::free(memory); }

    // Room for `floats`, on a cache line; what an earlier call handed out is overwritten.
    float* take(size_t floats) {
        const size_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
        if (bytes > size || size > KEPT) {
            std::free(memory);
            memory = static_cast<float*>(std::aligned_alloc(64, bytes));
            size = memory ? bytes : 0;
            if (!memory) std::abort();
        }
        return memory;
    }

  private:
    static constexpr size_t KEPT = size_t(64) << 20;
    float* memory = nullptr;
    size_t size = 0;
};

// Hands out consecutive pieces, each on a cache line; with a null start it only counts.
struct Pieces {
    float* start;
    size_t used = 0;

    float* take(size_t floats) {
        float* piece = start ? start + used : nullptr;
        used += (floats + LINE - 1) / LINE * LINE;
        return piece;
    }
};

struct FloatRows {
    const float* data;
    int64_t stride;
};

// Rows position .. position + count - 1 of an operand as floats: where they lie, or converted into `buffer`.
static inline FloatRows float_rows(const Call& call, const Operand& x, int64_t b, int64_t head, int64_t position,
                                   int count, int64_t width, float* buffer) {
    const int64_t at = b * x.batch + head * x.head + position * x.position;
    if (call.dtype == FLOAT32) return {static_cast<const float*>(x.data) + at, x.position};
    const uint16_t* from = static_cast<const uint16_t*>(x.data) + at;
    for (int r = 0; r < count; r++) {
        for (int64_t i = 0; i < width; i++) buffer[r * width + i] = from_bfloat16(from[r * x.position + i]);
    }
    return {buffer, width};
}

// One row of floats into an operand, rounded to its dtype.
static inline void write_row(const Call& call, const Operand& x, int64_t b, int64_t head, int64_t position,
                             const float* row, int64_t width) {
    const int64_t at = b * x.batch + head * x.head + position * x.position;
    if (call.dtype == FLOAT32) {
        std::memcpy(static_cast<float*>(x.data) + at, row, width * sizeof(float));
        return;
    }
    uint16_t* to = static_cast<uint16_t*>(x.data) + at;
    for (int64_t i = 0; i < width; i++) to[i] = to_bfloat16(row[i]);
}

// packed[channel][query] from `count` rows, zeros up to `columns`.
static inline void pack_transposed(FloatRows rows, int count, int columns, int64_t width, float* packed) {
    for (int64_t i = 0; i < width; i++) {
        float* to = packed + i * BLOCK;
        for (int q = 0; q < count; q++) to[q] = rows.data[q * rows.stride + i];
        for (int q = count; q < columns; q++) to[q] = 0.0f;
    }
}

// Keys of a tile that any of the LINE queries from q on sees under the causal rule.
static inline int visible_keys(int keys, int q, int64_t diagonal) {
    return int(std::clamp<int64_t>(diagonal + q + LINE, 0, keys));
}

// Sets LINE columns of a tile to 0 from key `visible` on.
static inline void clear_hidden(float* columns, int visible, int keys, int64_t stride = BLOCK) {
    for (int k = visible; k < keys; k++) std::fill_n(columns + k * stride, LINE, 0.0f);
}

// One column of registers of `exponentials`, from query q on.
template <int VECS>
static inline void exponentials_from(int q, float* scores, int all_keys, int64_t diagonal, float* maximum, float* total,
                                     int64_t stride) {
    const int keys = visible_keys(all_keys, q, diagonal);
    vec high[VECS], safe[VECS], added[VECS];
    for (int j = 0; j < VECS; j++) high[j] = load(maximum + q + j * LANES);
    for (int k = 0; k < keys; k++) {
        for (int j = 0; j < VECS; j++) high[j] = larger(load(scores + k * stride + q + j * LANES), high[j]);
    }
    for (int j = 0; j < VECS; j++) {
        safe[j] = high[j] == -INFINITY ? vec{} : high[j];
        added[j] = vec{};
    }
    for (int k = 0; k < keys; k++) {
        for (int j = 0; j < VECS; j++) {
            float* at = scores + k * stride + q + j * LANES;
            const vec e = exponential(load(at) - safe[j]);
            added[j] += e;
            store(at, e);
        }
    }
    for (int j = 0; j < VECS; j++) {
        const vec before = load(maximum + q + j * LANES), sum = load(total + q + j * LANES);
        store(total + q + j * LANES, sum * exponential(before - safe[j]) + added[j]);
        store(maximum + q + j * LANES, high[j]);
    }
}

// Turns a tile of scores [key][query] into exp(score - running maximum), and brings maximum and sum [query] up to date.
// The maximum stays -inf, and the exponentials are 0, where no key has been visible yet, and beyond the diagonal.
static inline void exponentials(float* scores, int keys, int columns, int64_t diagonal, float* maximum, float* total,
                                int64_t stride = BLOCK) {
    int q = 0;
    for (; q + LINE <= columns; q += LINE) {
        exponentials_from<LINE / LANES>(q, scores, keys, diagonal, maximum, total, stride);
        clear_hidden(scores + q, visible_keys(keys, q, diagonal), keys, stride);
    }
    if (q < columns) exponentials_from<1>(q, scores, keys, diagonal, maximum, total, stride);
}

static inline float lam_of(const Call& call, int64_t b, int64_t h, int64_t query) {
    return call.lam[b * call.lam_strides[0] + h * call.lam_strides[1] + query * call.lam_strides[2]];
}

// gain * RMSNorm(row) * weight in place; gives 1 / sqrt(mean square + eps), or 1 without a norm.
static inline float normalise(const Call& call, float* row) {
    const int64_t width = call.value_width;
    float root = 1.0f;
    if (call.norm) {
        vec squares{};
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) squares += load(row + i) * load(row + i);
        float total = sum(squares);
        for (; i < width; i++) total += row[i] * row[i];
        root = 1.0f / std::sqrt(total / float(width) + call.eps);
    }
    if (root == 1.0f && call.gain == 1.0f && !call.weight) return root;
    for (int64_t i = 0; i < width; i++) row[i] *= root * call.gain * (call.weight ? call.weight[i] : 1.0f);
    return root;
}
