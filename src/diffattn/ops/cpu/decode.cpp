// Few queries against many keys: decoding with a cache.
//
// Here reading K and V once is what costs. The rows that read the same keys are worked on together: all heads of a
// group, all their queries, and both maps where they share their keys (version 2); with keys of its own each map is a
// "sheet" of rows. A task is a span of 1024 keys of one (batch, group), so that even a single head keeps all threads
// busy.
//
// A span goes chunk by chunk: scores [key][row] of all sheets side by side, the running maximum and sum, then acc[row] +=
// exponentials * V for the rows of both maps at once, so V is read once. For up to FEW rows a sheet both products read
// rows from several places at a time, which is what it takes to read at the speed of memory (see STRIPES); for more, the
// microkernel of product.h does more work per number read.
//
// The spans' maxima, sums and accumulated rows are then put together, and only there do the maps meet. The split into
// spans depends on nothing but the number of keys: the same bits on each run.
#include "numbers.h"

namespace {

constexpr int64_t SPAN = 8 * CHUNK;

constexpr int FEW = 4;
// Rows that are read side by side, each from a stripe of its own of the chunk: the processor's prefetching ends with each
// page, and with several pages under way their delays overlap. One thread reads 32768 keys 1.4 times as fast.
constexpr int STRIPES = 4;

// scores[key][row] = scale * q_row . k_key for rows packed as [row][channel].
void few_scores(int keys, int rows, int64_t width, FloatRows k, const float* queries, float scale, float* scores,
                int64_t stride) {
    const int stripe = (keys + STRIPES - 1) / STRIPES;
    for (int first = 0; first < stripe; first++) {
        int64_t key[STRIPES];  // beyond the last one: that again
        for (int i = 0; i < STRIPES; i++) key[i] = std::min(i * stripe + first, keys - 1);
        for (int r = 0; r < rows; r++) {
            vec dot[STRIPES] = {};
            for (int64_t d = 0; d < width; d += LANES) {
                const vec q = load(queries + r * width + d);
                for (int i = 0; i < STRIPES; i++) dot[i] += q * load(k.data + key[i] * k.stride + d);
            }
            for (int i = 0; i < STRIPES; i++) scores[key[i] * stride + r] = scale * sum(dot[i]);
        }
    }
}

// accumulated[row][channel] += sum over keys of weights[key][row] * v[key][channel], for R rows and `count` keys that
// lie `stripe` apart.
template <int R>
void add_values(int count, int stripe, int64_t width, const float* weights, int64_t stride, FloatRows v,
                float* accumulated) {
    vec weight[STRIPES][R];
    for (int i = 0; i < count; i++) {
        for (int r = 0; r < R; r++) weight[i][r] = splat(weights[i * stripe * stride + r]);
    }
    for (int64_t e = 0; e < width; e += LANES) {
        vec sums[R];
        for (int r = 0; r < R; r++) sums[r] = load(accumulated + r * width + e);
        for (int i = 0; i < count; i++) {
            const vec x = load(v.data + i * stripe * v.stride + e);
            for (int r = 0; r < R; r++) sums[r] += weight[i][r] * x;
        }
        for (int r = 0; r < R; r++) store(accumulated + r * width + e, sums[r]);
    }
}

// The same for all keys of a chunk.
template <int R>
void few_values(int keys, int64_t width, const float* weights, int64_t stride, FloatRows v, float* accumulated) {
    const int stripe = keys / STRIPES;
    const auto add = [&](int count, int64_t key) {
        add_values<R>(count, stripe, width, weights + key * stride, stride, {v.data + key * v.stride, v.stride},
                      accumulated);
    };
    for (int first = 0; first < stripe; first++) add(STRIPES, first);
    for (int key = stripe * STRIPES; key < keys; key++) add(1, key);
}

// How the work is cut: heads of a group that are taken together, and what that makes.
struct Plan {
    int sheets;         // 2 where the maps have keys of their own
    int64_t heads;      // of a piece
    int64_t pieces;     // of a group
    int64_t spans;      // of the keys
    int rows_of_sheet;  // of a full piece
    bool few;           // rows of a sheet, and widths that fill registers
    int64_t partial;    // floats that one span leaves: for each row E accumulated channels, a maximum, a sum

    explicit Plan(const Call& call) {
        const int64_t share = call.heads / call.groups;
        sheets = call.maps == 2 && call.k[1].data != call.k[0].data ? 2 : 1;
        heads = std::min(share, std::max<int64_t>(1, BLOCK / (call.maps * call.queries)));
        pieces = (share + heads - 1) / heads;
        spans = (call.keys + SPAN - 1) / SPAN;
        rows_of_sheet = int(call.maps * heads * call.queries / sheets);
        few = rows_of_sheet <= FEW && call.width % LANES == 0 && call.value_width % LANES == 0;
        partial = call.maps * heads * call.queries * (call.value_width + 2);
    }

    int rows() const { return sheets * rows_of_sheet; }
    static int columns(int rows) { return (rows + LANES - 1) / LANES * LANES; }
    int64_t stride() const { return few ? columns(rows()) : BLOCK; }  // of a tile [key][row]
};

struct Buffers {
    float *queries[2], *scores, *key_rows, *value_rows;

    Buffers(const Call& call, Pieces pieces, size_t* floats) {
        for (int s = 0; s < 2; s++) queries[s] = pieces.take(call.width * BLOCK);
        scores = pieces.take(CHUNK * BLOCK);
        // Columns beyond the rows are carried along: they must hold numbers.
        if (scores) std::fill_n(scores, CHUNK * BLOCK, 0.0f);
        key_rows = pieces.take(CHUNK * call.width);
        value_rows = pieces.take(CHUNK * call.value_width);
        if (floats) *floats = pieces.used;
    }
};

// One span of one piece; row (map, head, query) is number (map * heads + head) * T + query.
struct Span {
    const Call& call;
    const Plan& plan;
    const Buffers& at;
    int64_t b, group, first_head, heads;
    float *accumulated, *maximum, *total;

    int64_t row(int64_t map, int64_t head) const { return (map * plan.heads + head) * call.queries; }

    void pack_queries() const {
        for (int s = 0; s < plan.sheets; s++) std::fill_n(at.queries[s], call.width * BLOCK, 0.0f);
        for (int m = 0; m < call.maps; m++) {
            for (int64_t i = 0; i < heads; i++) {
                const int64_t r = row(m, i), sheet = r / plan.rows_of_sheet, column = r % plan.rows_of_sheet;
                const FloatRows q =
                    float_rows(call, call.q[m], b, first_head + i, 0, int(call.queries), call.width, at.key_rows);
                for (int64_t t = 0; t < call.queries; t++) {
                    for (int64_t d = 0; d < call.width; d++) {
                        const int64_t to = plan.few ? (column + t) * call.width + d : d * BLOCK + column + t;
                        at.queries[sheet][to] = q.data[t * q.stride + d];
                    }
                }
            }
        }
    }

    // Scores of one sheet, in its columns of the tile.
    void score(int sheet, int64_t key, int keys) const {
        float* scores = at.scores + sheet * plan.rows_of_sheet;
        const FloatRows k = float_rows(call, call.k[sheet], b, group, key, keys, call.width, at.key_rows);
        if (plan.few) {
            few_scores(keys, plan.rows_of_sheet, call.width, k, at.queries[sheet], call.scale, scores, plan.stride());
        } else {
            product<Floats, SCORES>(keys, plan.columns(plan.rows_of_sheet), int(call.width), k.data, k.stride,
                                    at.queries[sheet], BLOCK, scores, BLOCK, call.scale, false, NO_DIAGONAL);
        }
    }

    // Scores to exponentials; the rows accumulated so far are brought to the new maximum.
    void exponentiate(int64_t key, int keys, Reach reach) const {
        for (int m = 0; m < call.maps; m++) {
            for (int64_t i = 0; i < heads; i++)
                Rows(call, b, first_head + i, 0).restrict(at.scores + row(m, i), key, reach, plan.stride());
        }
        alignas(64) float before[BLOCK];
        std::memcpy(before, maximum, sizeof before);
        exponentials(at.scores, keys, plan.columns(plan.rows()), NO_DIAGONAL, maximum, total, plan.stride());
        for (int r = 0; r < plan.rows(); r++) {
            if (maximum[r] == before[r] || before[r] == -INFINITY) continue;
            const float factor = std::exp(before[r] - maximum[r]);
            float* row = accumulated + r * call.value_width;
            for (int64_t e = 0; e < call.value_width; e++) row[e] *= factor;
        }
    }

    void add_chunk(int64_t key, int keys, Reach reach) const {
        // In this order: a sheet's padding reaches into the columns of the next.
        for (int s = 0; s < plan.sheets; s++) score(s, key, keys);
        exponentiate(key, keys, reach);
        const FloatRows v = float_rows(call, call.v, b, group, key, keys, call.value_width, at.value_rows);
        if (!plan.few) {
            product<Floats, OVER_KEYS>(plan.rows(), int(call.value_width), keys, at.scores, BLOCK, v.data, v.stride,
                                       accumulated, call.value_width, 1.0f, true, NO_DIAGONAL);
            return;
        }
        for (int r = 0; r < plan.rows();) {
            const int left = plan.rows() - r, take = left == 1 ? 1 : 2;
            const auto add = take == 2 ? few_values<2> : few_values<1>;
            add(keys, call.value_width, at.scores + r, plan.stride(), v, accumulated + r * call.value_width);
            r += take;
        }
    }
};

void decode_span(const Call& call, const Plan& plan, const Buffers& at, int64_t task, float* partial) {
    const int64_t span = task % plan.spans, piece = task / plan.spans % plan.pieces,
                  pair = task / plan.spans / plan.pieces;
    const int64_t share = call.heads / call.groups, group = pair % call.groups, done = piece * plan.heads;
    alignas(64) float maximum[BLOCK], total[BLOCK] = {};
    std::fill_n(maximum, BLOCK, -INFINITY);
    const Span work{
        call,    plan,    at,   pair / call.groups, group, group * share + done, std::min(plan.heads, share - done),
        partial, maximum, total};
    std::fill_n(partial, plan.rows() * call.value_width, 0.0f);
    work.pack_queries();
    const Rows rows(call, work.b, work.first_head, 0);
    const int64_t end = std::min(rows.end, (span + 1) * SPAN);
    for (int64_t key = std::max(rows.begin, span * SPAN); key < end; key += CHUNK) {
        const Reach reach = rows.reach(key);
        if (reach != HIDDEN) work.add_chunk(key, rows.chunk_size(key), reach);
    }
    float* statistics = partial + plan.rows() * call.value_width;
    for (int r = 0; r < plan.rows(); r++) {
        statistics[2 * r] = maximum[r];
        statistics[2 * r + 1] = total[r];
    }
}

// Adds `weight` * softmax's result of one row, put together from its spans; the sink, if any, is in the sum.
void add_row(const Call& call, const Plan& plan, const float* partials, int64_t r, float sink, float weight,
             float* row) {
    const int64_t width = call.value_width, statistics = plan.rows() * width + 2 * r;
    float maximum = sink;
    for (int64_t s = 0; s < plan.spans; s++) maximum = std::fmax(maximum, partials[s * plan.partial + statistics]);
    if (maximum == -INFINITY) maximum = 0.0f;
    float total = std::exp(sink - maximum);
    for (int64_t s = 0; s < plan.spans; s++) {
        const float* of_row = partials + s * plan.partial + statistics;
        total += of_row[1] * std::exp(of_row[0] - maximum);
    }
    if (total == 0.0f) return;
    for (int64_t s = 0; s < plan.spans; s++) {
        const float* from = partials + s * plan.partial;
        const float factor = weight * std::exp(from[statistics] - maximum) / total;
        for (int64_t e = 0; e < width; e++) row[e] += factor * from[r * width + e];
    }
}

void finish_query(const Call& call, const Plan& plan, const float* memory, int64_t b, int64_t h, int64_t t,
                  const Operand& out) {
    const int64_t share = call.heads / call.groups, group = h / share, in_group = h % share;
    const int64_t piece = in_group / plan.heads, head = in_group % plan.heads;
    const float* partials = memory + (((b * call.groups + group) * plan.pieces + piece) * plan.spans) * plan.partial;
    float row[512] = {};
    for (int m = 0; m < call.maps; m++) {
        const float weight = m == 0 ? 1.0f : -lam_of(call, b, h, t);
        const float sink = call.sink ? call.sink[h] : -INFINITY;
        add_row(call, plan, partials, (m * plan.heads + head) * call.queries + t, sink, weight, row);
    }
    normalise(call, row);
    write_row(call, out, b, h, t, row, call.value_width);
}

}  // namespace

extern "C" void diffattn_decode(const Call* call_pointer, const Operand* out) {
    const Call& call = *call_pointer;
    const Plan plan(call);
    const int64_t tasks = call.batch * call.groups * plan.pieces * plan.spans;
    size_t floats;
    Buffers(call, Pieces{nullptr}, &floats);
    static thread_local Scratch partial_scratch;
    float* memory = partial_scratch.take(tasks * plan.partial);
    const int64_t queries = call.batch * call.heads * call.queries;
#pragma omp parallel num_threads(call.threads)
    {
        static thread_local Scratch scratch;
        const Buffers at(call, Pieces{scratch.take(floats)}, nullptr);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++) decode_span(call, plan, at, task, memory + task * plan.partial);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < queries; i++) {
            const int64_t head = i / call.queries;
            finish_query(call, plan, memory, head / call.heads, head % call.heads, i % call.queries, *out);
        }
    }
}
