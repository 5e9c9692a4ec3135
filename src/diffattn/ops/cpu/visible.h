// Who attends to whom: for a block of queries, which chunks of keys it can reach, and the restrictions on one chunk.
#pragma once
#include <algorithm>

#include "kernel.h"
#include "product.h"

constexpr int BLOCK = 64;   // queries that are worked on together
constexpr int CHUNK = 128;  // keys that are worked on together

enum Reach { HIDDEN, PARTIAL, OPEN };  // no query sees any key of the chunk; some see some; every query sees every key

// Queries first .. first + count - 1 of head h in batch row b; positions count from 0, the last query at length - 1.
struct Rows {
    const Call& call;
    int64_t b, h, first;
    int count;
    int64_t length;           // keys that exist
    int64_t position;         // of the first query; below 0 where there are more queries than keys
    int64_t begin, end;       // of the keys that causality and window leave
    int64_t low_id, high_id;  // of the queries' documents, padding left out; low > high: all are padding
    int64_t ids[BLOCK];

    Rows(const Call& call, int64_t b, int64_t h, int64_t first)
        : call(call), b(b), h(h), first(first), count(int(std::min<int64_t>(BLOCK, call.queries - first))) {
        // A compiled graph cannot check lengths at the door.
        length = call.lengths ? std::clamp<int64_t>(call.lengths[b], 0, call.keys) : call.keys;
        position = length - call.queries + first;
        end = call.is_causal ? std::max<int64_t>(0, std::min(length, position + count)) : length;
        begin = call.window ? std::max<int64_t>(0, position - call.window + 1) : 0;
        begin = std::min(begin / CHUNK * CHUNK, end);
        low_id = 0, high_id = -1;
        if (!call.documents) return;
        for (int q = 0; q < count; q++) {
            const int64_t at = position + q;
            ids[q] = at < 0 ? -1 : call.documents[b * call.keys + at];
            if (ids[q] < 0) continue;
            low_id = high_id < 0 ? ids[q] : std::min(low_id, ids[q]);
            high_id = std::max(high_id, ids[q]);
        }
    }

    // Columns of a score tile: whole cache lines that hold all queries.
    int columns() const { return (count + LINE - 1) / LINE * LINE; }

    int chunk_size(int64_t key) const { return int(std::min<int64_t>(CHUNK, end - key)); }

    // Query q of the block sees the keys up to q + diagonal of the chunk.
    int64_t diagonal(int64_t key) const { return call.is_causal ? std::min(position - key, NO_DIAGONAL) : NO_DIAGONAL; }

    Reach reach(int64_t key) const {
        const int64_t last = key + chunk_size(key) - 1;
        bool open = !call.mask;
        if (call.is_causal && last > position) open = false;
        if (call.window && key <= position + count - 1 - call.window) open = false;
        if (!call.documents) return open ? OPEN : PARTIAL;
        // Ranges of ids decide without looking at pairs: what lies outside the queries' range is seen by none.
        const int64_t* ids_of_keys = call.documents + b * call.keys;
        int64_t low = INT64_MAX, high = -1, lowest = INT64_MAX;
        for (int64_t k = key; k <= last; k++) {
            const int64_t id = ids_of_keys[k];
            lowest = std::min(lowest, id);
            if (id >= 0) low = std::min(low, id);
            high = std::max(high, id);
        }
        if (low > high_id || high < low_id || low_id > high_id) return HIDDEN;
        const bool one = low_id == high_id && low == high && low == low_id && lowest >= 0;
        bool padded = false;
        for (int q = 0; q < count; q++) padded |= ids[q] < 0;
        return open && one && !padded ? OPEN : PARTIAL;
    }

    // Adds ALiBi and mask to scores[key][query] of a chunk that starts at `key`, and sets what is hidden to -inf.
    void restrict(float* scores, int64_t key, Reach reach, int64_t stride = BLOCK) const {
        if (reach == OPEN && !call.alibi) return;
        const int keys = chunk_size(key);
        const float slope = call.alibi ? call.alibi[h] : 0.0f;
        const int64_t window = call.window ? call.window : INT64_MAX / 2;
        for (int k = 0; k < keys; k++) {
            float* row = scores + k * stride;
            // Distance of the first query to this key; positive: the key lies in the past.
            const int64_t distance = position - (key + k);
            if (call.alibi) {
                for (int q = 0; q < count; q++) row[q] -= slope * std::fabs(float(int32_t(distance) + q));
            }
            if (reach == OPEN) continue;
            if (call.is_causal) {
                const int low = int(std::clamp<int64_t>(-distance, 0, count));
                const int high = int(std::clamp<int64_t>(window - distance, 0, count));
                for (int q = 0; q < low; q++) row[q] = -INFINITY;
                for (int q = high; q < count; q++) row[q] = -INFINITY;
            }
            if (call.documents) {
                const int64_t id = call.documents[b * call.keys + key + k];
                for (int q = 0; q < count; q++) row[q] = ids[q] == id && id >= 0 ? row[q] : -INFINITY;
            }
            if (call.mask) apply_mask(row, key + k);
        }
    }

  private:
    void apply_mask(float* row, int64_t key) const {
        const int64_t* strides = call.mask_strides;
        const int64_t at = b * strides[0] + h * strides[1] + first * strides[2] + key * strides[3];
        if (call.mask_kind == BOOL_MASK) {
            const uint8_t* may = static_cast<const uint8_t*>(call.mask) + at;
            for (int q = 0; q < count; q++) row[q] = may[q * strides[2]] ? row[q] : -INFINITY;
        } else {
            const float* bias = static_cast<const float*>(call.mask) + at;
            for (int q = 0; q < count; q++) {
                const float x = bias[q * strides[2]];
                row[q] = x == -INFINITY || row[q] == -INFINITY ? -INFINITY : row[q] + x;
            }
        }
    }
};
