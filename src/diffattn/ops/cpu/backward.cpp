// The backward pass: 3 M D + 2 E multiply-adds per pair of query and key (10 units of D for two maps with E = 2 D).
//
// With dA = dOut V^T, which both maps share, and for each map P = softmax(S):
//
//     A   = P1 - lam P2                dV   = A^T dOut
//     D_m = sum over keys of P_m dA    (D_1, D_2 apart: dOut . out would give only their combination; dlam = -D_2)
//     dS_1 = scale P1 (dA - D_1)       dS_2 = -lam scale P2 (dA - D_2)
//     dQ_m = dS_m K_m                  dK_m = dS_m^T Q_m
//
// A block of 64 queries goes over its keys twice. The first time it takes scores again (their maximum and sum were
// saved, apart from each other: a logarithm of the sum would lose digits beside a large maximum), and dA, keeps P and
// dA of whole rows in memory as [key][query] tiles, and sums up D. The second time D is known: the tiles turn into A
// and dS in place, and five products follow. The same tile serves products over queries and over keys.
//
// dK and dV are sums over queries. A task is a (batch, group) with all heads and blocks of that group, so its sums
// belong to it alone: no atomic additions, the same bits on each run. Where there are fewer (batch, group) pairs than
// would keep the threads busy, each is split into `parts`, which take blocks in turn and sum into memory of their own;
// those sums are then added up in their order.
#include "key_sums.h"
#include "numbers.h"

namespace {

struct Buffers {
    float *queries[2], *query_rows[2], *maps[2], *d_map, *d_out, *d_out_rows, *d_out_packed, *d_out_rest, *d_queries[2],
        *key_rows, *value_rows, *tile;

    Buffers(const Call& call, Pieces pieces, size_t* floats) {
        const int64_t keys = (call.keys + CHUNK - 1) / CHUNK * CHUNK;
        for (int m = 0; m < call.maps; m++) {
            queries[m] = pieces.take(call.width * BLOCK);
            query_rows[m] = pieces.take(call.width * BLOCK);
            d_queries[m] = pieces.take(call.width * BLOCK);
            maps[m] = pieces.take(keys * BLOCK);
        }
        d_map = pieces.take(keys * BLOCK);
        d_out = pieces.take(call.value_width * BLOCK);
        d_out_rows = pieces.take(call.value_width * BLOCK);
        d_out_packed = pieces.take(call.value_width * BLOCK);
        d_out_rest = pieces.take(call.value_width * BLOCK);
        key_rows = pieces.take(CHUNK * call.width);
        value_rows = pieces.take(std::max<int64_t>(CHUNK, BLOCK) * call.value_width);
        tile = pieces.take(CHUNK * BLOCK);
        if (floats) *floats = pieces.used;
    }
};

struct Statistics {
    alignas(64) float maximum[2][BLOCK], inverse[2][BLOCK], row_sum[2][BLOCK], lam[BLOCK];
};

int64_t row_of(const Call& call, const Rows& rows) {
    return (rows.b * call.heads + rows.h) * call.queries + rows.first;
}

void read_statistics(const Call& call, const Rows& rows, const Saved& saved, Statistics& now) {
    for (int m = 0; m < call.maps; m++) {
        const int64_t at = m * call.batch * call.heads * call.queries + row_of(call, rows);
        for (int q = 0; q < BLOCK; q++) {
            const bool real = q < rows.count;
            now.maximum[m][q] = real ? saved.maximum[at + q] : 0.0f;
            now.inverse[m][q] = real ? saved.inverse_sum[at + q] : 0.0f;
            now.row_sum[m][q] = 0.0f;
        }
    }
    for (int q = 0; q < BLOCK; q++) {
        const bool real = call.maps == 2 && q < rows.count && now.inverse[1][q] != 0.0f;
        now.lam[q] = real ? lam_of(call, rows.b, rows.h, rows.first + q) : 0.0f;
    }
}

// The gradient of the attention's own result, from that of the norm's: rows of floats in d_out.
void read_d_out(const Call& call, const Rows& rows, const Saved& saved, const Operand& gradient, float* d_weight,
                const Buffers& at) {
    const int64_t width = call.value_width;
    for (int q = 0; q < rows.count; q++) {
        float* row = at.d_out + q * width;
        // A row that attends nothing passes nothing on, whatever its gradient.
        if (saved.inverse_sum[row_of(call, rows) + q] == 0.0f) {
            std::fill_n(row, width, 0.0f);
            continue;
        }
        const FloatRows given = float_rows(call, gradient, rows.b, rows.h, rows.first + q, 1, width, row);
        if (given.data != row) std::memcpy(row, given.data, width * sizeof(float));
        if (!call.norm) {
            if (call.gain == 1.0f) continue;
            for (int64_t i = 0; i < width; i++) row[i] *= call.gain;
            continue;
        }
        const float* before = saved.before_norm + (row_of(call, rows) + q) * width;
        const float root = saved.inverse_root[row_of(call, rows) + q];
        float mean = 0.0f;
        for (int64_t i = 0; i < width; i++) {
            const float normed = before[i] * root, g = row[i] * call.gain;
            if (d_weight) d_weight[i] += g * normed;
            row[i] = g * (call.weight ? call.weight[i] : 1.0f);
            mean += row[i] * normed;
        }
        mean /= float(width);
        for (int64_t i = 0; i < width; i++) row[i] = root * (row[i] - before[i] * root * mean);
    }
}

// What dA multiplies with. Behind a norm or a gain dOut is not given in bfloat16, and rounding it would cost lam's
// gradient two digits; so pairs take what rounding leaves as a second operand.
template <class N>
bool d_out_has_rest(const Call& call) {
    return N::PER_UNIT == 2 && (call.norm || call.gain != 1.0f);
}

template <class N>
void pack_d_out(const Call& call, const Rows& rows, const Buffers& at) {
    const int64_t width = call.value_width;
    const FloatRows d_out{at.d_out, width};
    const auto pack = [&](float* packed) {
        pack_transposed(N::along(d_out, rows.count, width, at.value_rows), rows.count, rows.columns(), units<N>(width),
                        packed);
    };
    pack(at.d_out_packed);
    if (!d_out_has_rest<N>(call)) return;
    for (int64_t i = 0; i < rows.count * width; i++) at.d_out[i] -= from_bfloat16(to_bfloat16(at.d_out[i]));
    pack(at.d_out_rest);
}

// P_m of a chunk in place of its scores, and what the chunk adds to D_m.
void softmax_chunk(const Rows& rows, int all_keys, int64_t diagonal, float* scores, const float* d_map,
                   const float* maximum, const float* inverse, float* row_sum) {
    constexpr int VECS = LINE / LANES;
    for (int q = 0; q < rows.columns(); q += LINE) {
        const int keys = visible_keys(all_keys, q, diagonal);
        vec high[VECS], factor[VECS], added[VECS];
        for (int j = 0; j < VECS; j++) {
            high[j] = load(maximum + q + j * LANES);
            factor[j] = load(inverse + q + j * LANES);
            added[j] = vec{};
        }
        for (int k = 0; k < keys; k++) {
            for (int j = 0; j < VECS; j++) {
                const int i = k * BLOCK + q + j * LANES;
                const vec p = exponential(load(scores + i) - high[j]) * factor[j];
                added[j] += p * load(d_map + i);
                store(scores + i, p);
            }
        }
        for (int j = 0; j < VECS; j++) store(row_sum + q + j * LANES, load(row_sum + q + j * LANES) + added[j]);
    }
}

template <class N>
void first_pass(const Call& call, const Rows& rows, int64_t key, Reach reach, int64_t chunk, const Buffers& at,
                Statistics& now) {
    const int keys = rows.chunk_size(key), columns = rows.columns();
    const int64_t group = rows.h / (call.heads / call.groups), offset = chunk * CHUNK * BLOCK;
    const int64_t diagonal = rows.diagonal(key);
    const FloatRows v = N::along(call, call.v, rows.b, group, key, keys, call.value_width, at.value_rows);
    product<N, SCORES>(keys, columns, units<N>(call.value_width), v.data, v.stride, at.d_out_packed, BLOCK,
                       at.d_map + offset, BLOCK, 1.0f, false, diagonal);
    if (d_out_has_rest<N>(call))
        product<N, SCORES>(keys, columns, units<N>(call.value_width), v.data, v.stride, at.d_out_rest, BLOCK,
                           at.d_map + offset, BLOCK, 1.0f, true, diagonal);
    FloatRows k{};
    for (int m = 0; m < call.maps; m++) {
        if (m == 0 || call.k[1].data != call.k[0].data)
            k = N::along(call, call.k[m], rows.b, group, key, keys, call.width, at.key_rows);
        float* scores = at.maps[m] + offset;
        product<N, SCORES>(keys, columns, units<N>(call.width), k.data, k.stride, at.queries[m], BLOCK, scores, BLOCK,
                           call.scale, false, diagonal);
        rows.restrict(scores, key, reach);
        softmax_chunk(rows, keys, diagonal, scores, at.d_map + offset, now.maximum[m], now.inverse[m], now.row_sum[m]);
    }
}

// maps[m] turns from P_m into dS_m, d_map from dA into A, in one register's columns from query q on.
void differentiate_columns(const Call& call, int keys, int64_t offset, int q, const Buffers& at,
                           const Statistics& now) {
    const vec lam = load(now.lam + q), scale = splat(call.scale);
    const vec sum1 = load(now.row_sum[0] + q), sum2 = load(now.row_sum[1] + q);
    for (int k = 0; k < keys; k++) {
        const int64_t i = offset + k * BLOCK;
        const vec p1 = load(at.maps[0] + i), gradient = load(at.d_map + i);
        store(at.maps[0] + i, p1 * (gradient - sum1) * scale);
        if (call.maps == 1) {
            store(at.d_map + i, p1);
            continue;
        }
        const vec p2 = load(at.maps[1] + i) * -lam;
        store(at.maps[1] + i, p2 * (gradient - sum2) * scale);
        store(at.d_map + i, p1 + p2);
    }
}

void differentiate_chunk(const Call& call, const Rows& rows, int all_keys, int64_t diagonal, int64_t offset,
                         const Buffers& at, const Statistics& now) {
    for (int line = 0; line < rows.columns(); line += LINE) {
        const int keys = visible_keys(all_keys, line, diagonal);
        for (int q = line; q < line + LINE; q += LANES) differentiate_columns(call, keys, offset + q, q, at, now);
        clear_hidden(at.d_map + offset + line, keys, all_keys);
        for (int m = 0; m < call.maps; m++) clear_hidden(at.maps[m] + offset + line, keys, all_keys);
    }
}
// Of a block: what its products over queries multiply with, the depth across the rows.
struct QueryRows {
    FloatRows q[2], d_out;
};

template <class N>
void second_pass(const Call& call, const Rows& rows, int64_t key, int64_t chunk, const QueryRows& of, const Buffers& at,
                 const Statistics& now, const KeySums& sums) {
    const int keys = rows.chunk_size(key), width = int(call.width);
    const int64_t group = rows.h / (call.heads / call.groups), offset = chunk * CHUNK * BLOCK;
    const int64_t diagonal = rows.diagonal(key);
    differentiate_chunk(call, rows, keys, diagonal, offset, at, now);
    const float* map = N::tile_over_queries(at.d_map + offset, keys, at.tile);
    product<N, OVER_QUERIES>(keys, int(call.value_width), units<N>(rows.count), map, BLOCK, of.d_out.data,
                             of.d_out.stride, sums.v + key * sums.v_stride, sums.v_stride, 1.0f, true, diagonal);
    FloatRows k{};
    for (int m = 0; m < call.maps; m++) {
        if (m == 0 || call.k[1].data != call.k[0].data)
            k = N::across(call, call.k[m], rows.b, group, key, keys, width, at.key_rows);
        float* d_scores = at.maps[m] + offset;
        const float* over_queries = N::tile_over_queries(d_scores, keys, at.tile);
        product<N, OVER_QUERIES>(keys, width, units<N>(rows.count), over_queries, BLOCK, of.q[m].data, of.q[m].stride,
                                 sums.k[m] + key * sums.k_stride[m], sums.k_stride[m], 1.0f, true, diagonal);
        N::tile_over_keys(d_scores, keys);
        product<N, OVER_KEYS>(rows.count, width, units<N>(keys), d_scores, BLOCK, k.data, k.stride, at.d_queries[m],
                              width, 1.0f, chunk > 0, diagonal);
    }
}

template <class N>
void backward_block(const Call& call, const Rows& rows, const Saved& saved, const Gradients& gradients, float* d_weight,
                    const Buffers& at, const KeySums& sums) {
    Statistics now;
    read_statistics(call, rows, saved, now);
    read_d_out(call, rows, saved, gradients.out, d_weight, at);
    const FloatRows d_out = {at.d_out, call.value_width};
    QueryRows of{{}, N::across(d_out, rows.count, call.value_width, at.d_out_rows)};
    pack_d_out<N>(call, rows, at);
    for (int m = 0; m < call.maps; m++) {
        const FloatRows q =
            N::along(call, call.q[m], rows.b, rows.h, rows.first, rows.count, call.width, at.query_rows[m]);
        pack_transposed(q, rows.count, rows.columns(), units<N>(call.width), at.queries[m]);
        of.q[m] = N::across(call, call.q[m], rows.b, rows.h, rows.first, rows.count, call.width, at.query_rows[m]);
    }
    int64_t chunks = 0;
    for (int64_t key = rows.begin; key < rows.end; key += CHUNK) {
        const Reach reach = rows.reach(key);
        if (reach != HIDDEN) first_pass<N>(call, rows, key, reach, chunks++, at, now);
    }
    int64_t chunk = 0;
    for (int64_t key = rows.begin; key < rows.end; key += CHUNK) {
        if (rows.reach(key) != HIDDEN) second_pass<N>(call, rows, key, chunk++, of, at, now, sums);
    }
    for (int m = 0; m < call.maps; m++) {
        if (chunks == 0) std::fill_n(at.d_queries[m], rows.count * call.width, 0.0f);
        for (int r = 0; r < rows.count; r++) {
            write_row(call, gradients.q[m], rows.b, rows.h, rows.first + r, at.d_queries[m] + r * call.width,
                      call.width);
        }
        const int64_t row = m * call.batch * call.heads * call.queries + row_of(call, rows);
        std::memcpy(gradients.row_sums + row, now.row_sum[m], rows.count * sizeof(float));
    }
}

template <class N>
void backward_part(const Call& call, const Saved& saved, const Gradients& gradients, int64_t pair, int64_t part,
                   int64_t parts, const Buffers& at, const KeySums& sums) {
    const int64_t b = pair / call.groups, group = pair % call.groups, share = call.heads / call.groups;
    const int64_t blocks = (call.queries + BLOCK - 1) / BLOCK;
    float* d_weight = gradients.weight ? gradients.weight + (pair * parts + part) * call.value_width : nullptr;
    if (d_weight) std::fill_n(d_weight, call.value_width, 0.0f);
    clear(call, sums);
    for (int64_t i = part; i < share * blocks; i += parts) {
        const Rows rows(call, b, group * share + i / blocks, i % blocks * BLOCK);
        backward_block<N>(call, rows, saved, gradients, d_weight, at, sums);
    }
}

}  // namespace

// The fewest parts that share the work out evenly, or nearly so: each costs memory of its own.
extern "C" int64_t diffattn_parts(const Call* call) {
    const int64_t pairs = call->batch * call->groups, blocks = (call->queries + BLOCK - 1) / BLOCK;
    const int64_t most = std::max<int64_t>(1, blocks * (call->heads / call->groups));
    int64_t parts = 1;
    while (parts < most && pairs * parts % call->threads != 0 && pairs * parts < 2 * call->threads) parts++;
    return parts;
}

extern "C" void diffattn_backward(const Call* call_pointer, const Saved* saved, const Gradients* gradients) {
    const Call& call = *call_pointer;
    const int64_t parts = diffattn_parts(call_pointer), pairs = call.batch * call.groups;
    const bool in_place = parts == 1 && call.dtype == FLOAT32;
    const int64_t size = call.keys * floats_per_key(call);
    size_t floats;
    Buffers(call, Pieces{nullptr}, &floats);
    static thread_local Scratch sums_scratch;
    float* memory = in_place ? nullptr : sums_scratch.take(pairs * parts * size);
#pragma omp parallel num_threads(call.threads)
    {
        static thread_local Scratch scratch;
        const Buffers at(call, Pieces{scratch.take(floats)}, nullptr);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < pairs * parts; task++) {
            const int64_t pair = task / parts;
            const KeySums sums = in_place ? sums_in_place(call, *gradients, pair / call.groups, pair % call.groups)
                                          : sums_in(call, memory + task * size);
            const auto run = call.dtype == FLOAT32 ? backward_part<Floats> : backward_part<Narrow>;
            run(call, *saved, *gradients, pair, task % parts, parts, at, sums);
        }
#pragma omp for schedule(static)
        for (int64_t row = 0; row < (in_place ? 0 : pairs * call.keys); row++) {
            const int64_t pair = row / call.keys, key = row % call.keys;
            write_key(call, *gradients, memory + pair * parts * size, parts, pair / call.groups, pair % call.groups,
                      key);
        }
    }
}
