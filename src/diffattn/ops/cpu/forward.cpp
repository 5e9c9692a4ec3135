// The forward pass: out = (A1 - lam A2) V with ONE product with V.
//
// A task is a block of 64 queries of one head. It takes the scores of all keys that the block can reach, chunk by chunk
// of 128 keys, as tiles [key][query], and keeps the exponentials of the whole rows: 64 x S floats a map, which stay in
// the processor's cache up to several thousand keys. Each chunk is taken relative to the maximum seen so far, which is
// noted beside it. Once the rows are complete, their sums are known, so the two maps can be combined BEFORE the product
// with V: per chunk
//
//     A[key][query] = E1 f1 - E2 f2,    f = exp(maximum of the chunk - final maximum) / sum, the second times lam,
//
// and out += A^T V. That is 2 D + E multiply-adds per pair of query and key where two separate attentions take
// 2 D + 2 E: with E = 2 D as much as ordinary attention of the same width.
//
// The exponentials of a block live in memory that grows with S, never with T * S. Tasks are handed out from the last
// block of queries, which under the causal rule is the longest, to the first; what a task computes depends on nothing
// but its place, so the result has the same bits whichever thread took it.
#include "numbers.h"

namespace {

struct Buffers {
    float *queries[2], *exponentials[2], *chunk_maximum[2], *combined, *result, *key_rows, *value_rows;

    Buffers(const Call& call, Pieces pieces, size_t* floats) {
        const int64_t chunks = (call.keys + CHUNK - 1) / CHUNK;
        for (int m = 0; m < call.maps; m++) {
            queries[m] = pieces.take(call.width * BLOCK);
            exponentials[m] = pieces.take(chunks * CHUNK * BLOCK);
            chunk_maximum[m] = pieces.take(chunks * BLOCK);
        }
        combined = pieces.take(CHUNK * BLOCK);
        result = pieces.take(BLOCK * call.value_width);
        key_rows = pieces.take(CHUNK * call.width);
        value_rows = pieces.take(CHUNK * call.value_width);
        if (floats) *floats = pieces.used;
    }
};

struct Statistics {
    alignas(64) float maximum[2][BLOCK], total[2][BLOCK], factor[2][BLOCK];
};

void start(const Call& call, const Rows& rows, Statistics& now) {
    for (int m = 0; m < call.maps; m++) {
        const float sink = call.sink ? call.sink[rows.h] : -INFINITY;
        std::fill_n(now.maximum[m], BLOCK, sink);
        std::fill_n(now.total[m], BLOCK, sink == -INFINITY ? 0.0f : 1.0f);
    }
}

template <class N>
void score_chunk(const Call& call, const Rows& rows, int64_t key, Reach reach, int64_t chunk, const Buffers& at,
                 Statistics& now) {
    const int keys = rows.chunk_size(key);
    const int64_t group = rows.h / (call.heads / call.groups);
    FloatRows k{};
    for (int m = 0; m < call.maps; m++) {
        if (m == 0 || call.k[1].data != call.k[0].data)
            k = N::along(call, call.k[m], rows.b, group, key, keys, call.width, at.key_rows);
        float* scores = at.exponentials[m] + chunk * CHUNK * BLOCK;
        product<N, SCORES>(keys, rows.columns(), units<N>(call.width), k.data, k.stride, at.queries[m], BLOCK, scores,
                           BLOCK, call.scale, false, rows.diagonal(key));
        rows.restrict(scores, key, reach);
        exponentials(scores, keys, rows.columns(), rows.diagonal(key), now.maximum[m], now.total[m]);
        std::memcpy(at.chunk_maximum[m] + chunk * BLOCK, now.maximum[m], sizeof now.maximum[m]);
    }
}

// With the sums known: the factor of each map, and what the backward pass needs.
void finish_statistics(const Call& call, const Rows& rows, const Saved* saved, Statistics& now) {
    for (int m = 0; m < call.maps; m++) {
        const int64_t at = ((m * call.batch + rows.b) * call.heads + rows.h) * call.queries + rows.first;
        for (int q = 0; q < rows.columns(); q++) {
            const float inverse = now.total[m][q] == 0.0f ? 0.0f : 1.0f / now.total[m][q];
            const float maximum = now.maximum[m][q] == -INFINITY ? 0.0f : now.maximum[m][q];
            now.maximum[m][q] = maximum;
            if (q < rows.count && saved->maximum) {
                saved->maximum[at + q] = maximum;
                saved->inverse_sum[at + q] = inverse;
            }
            const bool second = m == 1 && q < rows.count;
            now.factor[m][q] =
                second && inverse != 0.0f ? -lam_of(call, rows.b, rows.h, rows.first + q) * inverse : inverse;
        }
    }
}

void combine_chunk(const Call& call, const Rows& rows, int keys, int64_t chunk, const Buffers& at,
                   const Statistics& now) {
    constexpr int VECS = LINE / LANES;
    const float* first = at.exponentials[0] + chunk * CHUNK * BLOCK;
    const float* second = call.maps == 2 ? at.exponentials[1] + chunk * CHUNK * BLOCK : nullptr;
    for (int q = 0; q < rows.columns(); q += LINE) {
        vec factor[2][VECS];
        for (int m = 0; m < call.maps; m++) {
            for (int j = 0; j < VECS; j++) {
                const int i = q + j * LANES;
                const vec then = load(at.chunk_maximum[m] + chunk * BLOCK + i);
                factor[m][j] = load(now.factor[m] + i) * exponential(then - load(now.maximum[m] + i));
            }
        }
        for (int k = 0; k < keys; k++) {
            for (int j = 0; j < VECS; j++) {
                const int i = k * BLOCK + q + j * LANES;
                vec weight = load(first + i) * factor[0][j];
                if (second) weight += load(second + i) * factor[1][j];
                store(at.combined + i, weight);
            }
        }
    }
}

void write_result(const Call& call, const Rows& rows, const Buffers& at, const Operand& out, const Saved* saved) {
    for (int q = 0; q < rows.count; q++) {
        float* row = at.result + q * call.value_width;
        const int64_t query = rows.first + q, at_row = (rows.b * call.heads + rows.h) * call.queries + query;
        if (saved->before_norm)
            std::memcpy(saved->before_norm + at_row * call.value_width, row, call.value_width * sizeof(float));
        const float root = normalise(call, row);
        if (saved->inverse_root) saved->inverse_root[at_row] = root;
        write_row(call, out, rows.b, rows.h, query, row, call.value_width);
    }
}

template <class N>
void forward_block(const Call& call, const Rows& rows, const Buffers& at, const Operand& out, const Saved* saved) {
    Statistics now;
    start(call, rows, now);
    for (int m = 0; m < call.maps; m++) {
        const FloatRows q = N::along(call, call.q[m], rows.b, rows.h, rows.first, rows.count, call.width, at.key_rows);
        pack_transposed(q, rows.count, rows.columns(), units<N>(call.width), at.queries[m]);
    }
    int64_t chunk = 0;
    for (int64_t key = rows.begin; key < rows.end; key += CHUNK) {
        const Reach reach = rows.reach(key);
        if (reach != HIDDEN) score_chunk<N>(call, rows, key, reach, chunk++, at, now);
    }
    finish_statistics(call, rows, saved, now);
    if (chunk == 0) std::fill_n(at.result, rows.count * call.value_width, 0.0f);
    const int64_t group = rows.h / (call.heads / call.groups);
    chunk = 0;
    for (int64_t key = rows.begin; key < rows.end; key += CHUNK) {
        if (rows.reach(key) == HIDDEN) continue;
        const int keys = rows.chunk_size(key);
        combine_chunk(call, rows, keys, chunk, at, now);
        N::tile_over_keys(at.combined, keys);
        const FloatRows v = N::across(call, call.v, rows.b, group, key, keys, call.value_width, at.value_rows);
        product<N, OVER_KEYS>(rows.count, int(call.value_width), units<N>(keys), at.combined, BLOCK, v.data, v.stride,
                              at.result, call.value_width, 1.0f, chunk > 0, rows.diagonal(key));
        chunk++;
    }
    write_result(call, rows, at, out, saved);
}

}  // namespace

extern "C" void diffattn_forward(const Call* call_pointer, const Operand* out, const Saved* saved) {
    const Call& call = *call_pointer;
    const int64_t blocks = (call.queries + BLOCK - 1) / BLOCK, heads = call.batch * call.heads;
    size_t floats;
    Buffers(call, Pieces{nullptr}, &floats);
#pragma omp parallel num_threads(call.threads)
    {
        static thread_local Scratch scratch;
        const Buffers at(call, Pieces{scratch.take(floats)}, nullptr);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < blocks * heads; task++) {
            const int64_t head = task / blocks, block = blocks - 1 - task % blocks;
            const Rows rows(call, head / call.heads, head % call.heads, block * BLOCK);
            const auto run = call.dtype == FLOAT32 ? forward_block<Floats> : forward_block<Narrow>;
            run(call, rows, at, *out, saved);
        }
    }
}
