// dK and dV are sums over queries: where the backward pass keeps them until they are complete.
#pragma once
#include "block.h"

// Sums of dK (each map) and dV of one part of a (batch, group): rows of floats, one a key.
struct KeySums {
    float *k[2], *v;
    int64_t k_stride[2], v_stride;
};

static inline bool shares_keys(const Call& call) { return call.maps == 2 && call.k[1].data == call.k[0].data; }

static inline int64_t floats_per_key(const Call& call) {
    return call.width * (call.maps == 2 && !shares_keys(call) ? 2 : 1) + call.value_width;
}

// Sums that lie in `memory`, [S, floats_per_key].
static inline KeySums sums_in(const Call& call, float* memory) {
    const int64_t stride = floats_per_key(call);
    float* second = shares_keys(call) ? memory : memory + call.width;
    return {{memory, second}, memory + stride - call.value_width, {stride, stride}, stride};
}

// Sums that are taken in the gradients themselves: floats, and nobody else's.
static inline KeySums sums_in_place(const Call& call, const Gradients& gradients, int64_t b, int64_t group) {
    const auto rows = [&](const Operand& x) { return static_cast<float*>(x.data) + b * x.batch + group * x.head; };
    const Operand &first = gradients.k[0], &second = shares_keys(call) ? first : gradients.k[1];
    float* k2 = call.maps == 2 ? rows(second) : nullptr;
    return {{rows(first), k2}, rows(gradients.v), {first.position, second.position}, gradients.v.position};
}

static inline void clear(const Call& call, const KeySums& sums) {
    for (int64_t key = 0; key < call.keys; key++) {
        for (int m = 0; m < call.maps; m++) std::fill_n(sums.k[m] + key * sums.k_stride[m], call.width, 0.0f);
        std::fill_n(sums.v + key * sums.v_stride, call.value_width, 0.0f);
    }
}

// Adds up the parts of one key in their order, and writes its gradients.
static inline void write_key(const Call& call, const Gradients& gradients, float* memory, int64_t parts, int64_t b,
                             int64_t group, int64_t key) {
    const int64_t stride = floats_per_key(call);
    float* total = memory + key * stride;
    for (int64_t part = 1; part < parts; part++) {
        const float* more = memory + (part * call.keys + key) * stride;
        for (int64_t i = 0; i < stride; i++) total[i] += more[i];
    }
    const KeySums sums = sums_in(call, memory);
    const int maps = shares_keys(call) ? 1 : call.maps;
    for (int m = 0; m < maps; m++)
        write_row(call, gradients.k[m], b, group, key, sums.k[m] + key * sums.k_stride[m], call.width);
    write_row(call, gradients.v, b, group, key, sums.v + key * sums.v_stride, call.value_width);
}
