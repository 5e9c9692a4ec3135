"""The forward pass with one accumulator for both maps: what inference takes where V is wide.

With E = 256 two accumulators of 64 queries fill the registers of 8 warps. Where nothing is saved for a backward pass,
rows can be read twice instead: the first walk over the keys takes only the maximum and the sum of each map (2 D
multiply-adds for each query and key), the second computes the scores again, forms the combined weights

    p = 2^(t1 - top1) / sum1 - lam 2^(t2 - top2) / sum2         [BLOCK_M, BLOCK_N]

and needs one product with V (2 D + E). For E = 2 D that is the arithmetic of the two accumulators, 6 D, with half of
the registers, and the weights are rounded to 16 bits once instead of twice; each exponential is taken twice, which is
why `forward.py` stays where its accumulators fit.
"""

from __future__ import annotations

from diffattn.ops.triton.forward import add_keys, finish_rows
from diffattn.ops.triton.language import NOTHING, constexpr, jit, tl
from diffattn.ops.triton.tiles import load, product, store, weights
from diffattn.ops.triton.visible import key_end, key_ranges, logits, own_documents, visible


@jit
def both_logits(
    q1_tile, q2_tile, k1, k2, rules, batch, head, group, start, row, at, own, end, T, S, FACTOR, D: constexpr,
    SHARED: constexpr, CAUSAL: constexpr, PLAIN: constexpr, MIXED: constexpr, BLOCK_D: constexpr,
    BLOCK_N: constexpr,
):  # fmt: skip
    """Logits of both maps for keys start..start+BLOCK_N; row, at and own are [BLOCK_M, 1]."""
    key = (start + tl.arange(0, BLOCK_N))[None, :]
    seen = key
    if MIXED:
        seen = visible(rules, batch, head, row, at, key, own, end, T, S, CAUSAL)
    k_tile = load(k1, batch, group, start, 0, S, D, BLOCK_N, BLOCK_D, MIXED)
    t1 = logits(q1_tile, k_tile, seen, rules, batch, head, row, at, key, T, S, FACTOR, PLAIN, MIXED)
    if not SHARED:
        k_tile = load(k2, batch, group, start, 0, S, D, BLOCK_N, BLOCK_D, MIXED)
    t2 = logits(q2_tile, k_tile, seen, rules, batch, head, row, at, key, T, S, FACTOR, PLAIN, MIXED)
    return t1, t2


@jit
def sum_range(
    top1, sum1, top2, sum2, first, last, q1_tile, q2_tile, k1, k2, rules, batch, head, group, row, at, own, end, T, S,
    FACTOR, D: constexpr, SHARED: constexpr, CAUSAL: constexpr, PLAIN: constexpr, MIXED: constexpr,
    BLOCK_D: constexpr, BLOCK_N: constexpr,
):  # fmt: skip
    """The first walk, over keys first..last."""
    for start in range(first, last, BLOCK_N):
        t1, t2 = both_logits(
            q1_tile, q2_tile, k1, k2, rules, batch, head, group, start, row, at, own, end, T, S, FACTOR,
            D, SHARED, CAUSAL, PLAIN, MIXED, BLOCK_D, BLOCK_N,
        )  # fmt: skip
        _, top1, sum1, _ = add_keys(t1, top1, sum1, FACTOR, PLAIN, MIXED)
        _, top2, sum2, _ = add_keys(t2, top2, sum2, FACTOR, PLAIN, MIXED)
    return top1, sum1, top2, sum2


@jit
def read_range(
    acc, first, last, top1, inverse1, top2, inverse2, q1_tile, q2_tile, k1, k2, v, channel, rules, batch, head, group,
    row, at, own, end, T, S, FACTOR, D: constexpr, E: constexpr, SHARED: constexpr, CAUSAL: constexpr,
    PLAIN: constexpr, MIXED: constexpr, BLOCK_D: constexpr, BLOCK_E: constexpr, BLOCK_N: constexpr,
):  # fmt: skip
    """The second walk, over keys first..last; lam is in inverse2. All statistics are [BLOCK_M, 1]."""
    for start in range(first, last, BLOCK_N):
        t1, t2 = both_logits(
            q1_tile, q2_tile, k1, k2, rules, batch, head, group, start, row, at, own, end, T, S, FACTOR,
            D, SHARED, CAUSAL, PLAIN, MIXED, BLOCK_D, BLOCK_N,
        )  # fmt: skip
        p = weights(t1, top1, FACTOR, PLAIN) * inverse1 - weights(t2, top2, FACTOR, PLAIN) * inverse2
        v_tile = load(v, batch, group, start, channel, S, E, BLOCK_N, BLOCK_E, MIXED)
        acc += product(p.to(v_tile.dtype), v_tile)
    return acc


@jit
def combined_kernel(
    q1, k1, q2, k2, v, lam, out, rules, H, G, T, S, FACTOR,
    D: constexpr, E: constexpr, SHARED: constexpr, CAUSAL: constexpr, PLAIN: constexpr,
    OPEN: constexpr, BLOCK_D: constexpr, BLOCK_E: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr,
):  # fmt: skip
    """One program for each block of queries (axis 0, with batch and head) and each slice of V (axis 1)."""
    blocks = tl.cdiv(T, BLOCK_M)
    start_m = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    batch = tl.program_id(0) // blocks // H
    head = tl.program_id(0) // blocks % H
    group = head // (H // G)
    channel = tl.program_id(1) * BLOCK_E

    end = key_end(rules, batch, S)
    row = start_m + tl.arange(0, BLOCK_M)[:, None]
    at = end - T + row
    own = own_documents(rules, batch, tl.where(row < T, at, -1))
    q1_tile = load(q1, batch, head, start_m, 0, T, D, BLOCK_M, BLOCK_D, True)
    q2_tile = load(q2, batch, head, start_m, 0, T, D, BLOCK_M, BLOCK_D, True)
    lo, opens, mixed, hi = key_ranges(rules, batch, own, start_m, T, end, CAUSAL, OPEN, BLOCK_M, BLOCK_N)

    top1 = tl.full([BLOCK_M], NOTHING, tl.float32)
    sum1 = tl.zeros([BLOCK_M], tl.float32)
    top2, sum2 = top1, sum1
    if rules.window is not None:
        top1, sum1, top2, sum2 = sum_range(
            top1, sum1, top2, sum2, lo, opens, q1_tile, q2_tile, k1, k2, rules, batch, head, group, row, at, own, end,
            T, S, FACTOR, D, SHARED, CAUSAL, PLAIN, True, BLOCK_D, BLOCK_N,
        )  # fmt: skip
    if OPEN:
        top1, sum1, top2, sum2 = sum_range(
            top1, sum1, top2, sum2, opens, mixed, q1_tile, q2_tile, k1, k2, rules, batch, head, group, row, at, own,
            end, T, S, FACTOR, D, SHARED, CAUSAL, PLAIN, False, BLOCK_D, BLOCK_N,
        )  # fmt: skip
    top1, sum1, top2, sum2 = sum_range(
        top1, sum1, top2, sum2, mixed, hi, q1_tile, q2_tile, k1, k2, rules, batch, head, group, row, at, own, end,
        T, S, FACTOR, D, SHARED, CAUSAL, PLAIN, True, BLOCK_D, BLOCK_N,
    )  # fmt: skip

    inverse1, top1, _ = finish_rows(top1, sum1)
    inverse2, top2, _ = finish_rows(top2, sum2)
    top1, inverse1, top2 = top1[:, None], inverse1[:, None], top2[:, None]
    # A row that attends nothing is 0 whatever its lam.
    factor = load(lam, batch, head, start_m, 0, T, 1, BLOCK_M, 1, True)
    inverse2 = tl.where(inverse2[:, None] == 0.0, 0.0, inverse2[:, None] * factor)
    acc = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    if rules.window is not None:
        acc = read_range(
            acc, lo, opens, top1, inverse1, top2, inverse2, q1_tile, q2_tile, k1, k2, v, channel, rules, batch, head,
            group, row, at, own, end, T, S, FACTOR, D, E, SHARED, CAUSAL, PLAIN, True, BLOCK_D, BLOCK_E, BLOCK_N,
        )  # fmt: skip
    if OPEN:
        acc = read_range(
            acc, opens, mixed, top1, inverse1, top2, inverse2, q1_tile, q2_tile, k1, k2, v, channel, rules, batch,
            head, group, row, at, own, end, T, S, FACTOR,
            D, E, SHARED, CAUSAL, PLAIN, False, BLOCK_D, BLOCK_E, BLOCK_N,
        )  # fmt: skip
    acc = read_range(
        acc, mixed, hi, top1, inverse1, top2, inverse2, q1_tile, q2_tile, k1, k2, v, channel, rules, batch, head,
        group, row, at, own, end, T, S, FACTOR, D, E, SHARED, CAUSAL, PLAIN, True, BLOCK_D, BLOCK_E, BLOCK_N,
    )  # fmt: skip
    store(out, acc, batch, head, start_m, channel, T, E, BLOCK_M, BLOCK_E)
