"""The forward pass with one accumulator for each map.

A program owns BLOCK_M queries of one head and BLOCK_E channels of V, and walks over the keys in blocks of BLOCK_N:

    for each map:   t = q k^T                       [BLOCK_M, BLOCK_N], on the tensor cores
                    top = max(top, rowmax t);  p = 2^(t - top);  sum = sum * 2^(old - top) + rowsum p
                    acc = acc * 2^(old - top) + p v

The maps cannot be combined before the product with V, because their sums are known only at the end of the row and a
row does not fit into a processor's memory; hence two accumulators, [BLOCK_M, BLOCK_E] each in registers, and 2 D + 2 E
multiply-adds for each query and key. K1, K2 and V come through shared memory, several blocks ahead (num_stages), and V
is read once for both maps. Registers decide the blocks: with E = 128, BLOCK_M = 128 and 8 warps the accumulators take
128 of a thread's 255, the scores 32 more. A wider V may be split over programs (the scores are computed again in each),
or is taken by `combined.py` where nothing is saved.

At the end out = acc1 / sum1 - lam acc2 / sum2. For training the kernel also writes, in the operands' dtype, both reads
A1 v and A2 v, and for each map and row the maximum and log2 of the sum, in float32 and apart from each other:

- the backward pass needs D1 = dO . (A1 v) and D2 = dO . (A2 v), which dO . out alone does not give;
- a saturated row (one key, or one far above the rest) has A v = v to the last bit, so that its gradients cancel to 0
  even in 16 bits; D from the rounded difference, or a maximum added to the log of the sum, would leave noise there.

A row that attends nothing gets out = 0, maximum 0 and log-sum +inf: every weight taken from them is 0.
"""

from __future__ import annotations

from diffattn.ops.triton.language import LOG2E, NOTHING, constexpr, jit, tl
from diffattn.ops.triton.tiles import load, product, row_number, store, weights
from diffattn.ops.triton.visible import key_end, key_ranges, logits, own_documents, visible


@jit
def add_keys(t, top, total, FACTOR, PLAIN: constexpr, MIXED: constexpr):
    """One block of logits joins a row's softmax: its weights, the row's new maximum and sum, the old sum's factor."""
    new = tl.maximum(top, tl.max(t, 1))
    base = new
    if MIXED:
        # Nothing seen yet: minus infinity less minus infinity would be NaN.
        base = tl.where(new == NOTHING, 0.0, new)
    p = weights(t, base[:, None], FACTOR, PLAIN)
    shrink = weights(top, base, FACTOR, PLAIN)
    return p, new, total * shrink + tl.sum(p, 1), shrink


@jit
def finish_rows(top, total):
    """1 / sum, maximum and log2 of the sum of finished rows; 0, 0 and +inf where nothing was attended."""
    empty = (top == NOTHING) | (total == 0.0)
    inverse = tl.where(empty, 0.0, 1.0 / tl.where(empty, 1.0, total))
    return inverse, tl.where(empty, 0.0, top), tl.where(empty, -NOTHING, tl.log2(tl.where(empty, 1.0, total)))


@jit
def read_range(
    acc1, top1, sum1, acc2, top2, sum2, first, last, q1_tile, q2_tile, k1, k2, v, channel, rules, batch, head, group,
    row, at, own, end, T, S, FACTOR, D: constexpr, E: constexpr, MAPS: constexpr, SHARED: constexpr,
    CAUSAL: constexpr, PLAIN: constexpr, MIXED: constexpr, BLOCK_D: constexpr, BLOCK_E: constexpr,
    BLOCK_N: constexpr,
):  # fmt: skip
    """Keys first..last join the accumulators of both maps; row, at and own are [BLOCK_M, 1]."""
    for start in range(first, last, BLOCK_N):
        key = (start + tl.arange(0, BLOCK_N))[None, :]
        k_tile = load(k1, batch, group, start, 0, S, D, BLOCK_N, BLOCK_D, MIXED)
        v_tile = load(v, batch, group, start, channel, S, E, BLOCK_N, BLOCK_E, MIXED)
        seen = key
        if MIXED:
            seen = visible(rules, batch, head, row, at, key, own, end, T, S, CAUSAL)
        t = logits(q1_tile, k_tile, seen, rules, batch, head, row, at, key, T, S, FACTOR, PLAIN, MIXED)
        p, top1, sum1, shrink = add_keys(t, top1, sum1, FACTOR, PLAIN, MIXED)
        acc1 = acc1 * shrink[:, None] + product(p.to(v_tile.dtype), v_tile)
        if MAPS == 2:
            if not SHARED:
                k_tile = load(k2, batch, group, start, 0, S, D, BLOCK_N, BLOCK_D, MIXED)
            t = logits(q2_tile, k_tile, seen, rules, batch, head, row, at, key, T, S, FACTOR, PLAIN, MIXED)
            p, top2, sum2, shrink = add_keys(t, top2, sum2, FACTOR, PLAIN, MIXED)
            acc2 = acc2 * shrink[:, None] + product(p.to(v_tile.dtype), v_tile)
    return acc1, top1, sum1, acc2, top2, sum2


@jit
def forward_kernel(
    q1, k1, q2, k2, v, lam, sink, out, first, second, maximum, log_sum, rules, B, H, G, T, S, FACTOR,
    D: constexpr, E: constexpr, MAPS: constexpr, SHARED: constexpr, CAUSAL: constexpr,
    PLAIN: constexpr, OPEN: constexpr, SAVE: constexpr,
    BLOCK_D: constexpr, BLOCK_E: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr,
):  # fmt: skip
    """One program for each block of queries (axis 0, with batch and head) and each slice of V (axis 1)."""
    blocks = tl.cdiv(T, BLOCK_M)
    # Under causality the last queries see the most keys: they start first.
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
    top1 = tl.full([BLOCK_M], NOTHING, tl.float32)
    sum1 = tl.zeros([BLOCK_M], tl.float32)
    acc1 = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    if sink is not None:
        # One more key, of value 0.
        top1 = tl.zeros([BLOCK_M], tl.float32) + tl.load(sink + head) * LOG2E
        sum1 = tl.full([BLOCK_M], 1.0, tl.float32)
    q2_tile, top2, sum2, acc2 = q1_tile, top1, sum1, sum1
    if MAPS == 2:
        q2_tile = load(q2, batch, head, start_m, 0, T, D, BLOCK_M, BLOCK_D, True)
        acc2 = acc1

    lo, opens, mixed, hi = key_ranges(rules, batch, own, start_m, T, end, CAUSAL, OPEN, BLOCK_M, BLOCK_N)
    if rules.window is not None:
        acc1, top1, sum1, acc2, top2, sum2 = read_range(
            acc1, top1, sum1, acc2, top2, sum2, lo, opens, q1_tile, q2_tile, k1, k2, v, channel, rules,
            batch, head, group, row, at, own, end, T, S, FACTOR,
            D, E, MAPS, SHARED, CAUSAL, PLAIN, True, BLOCK_D, BLOCK_E, BLOCK_N,
        )  # fmt: skip
    if OPEN:
        acc1, top1, sum1, acc2, top2, sum2 = read_range(
            acc1, top1, sum1, acc2, top2, sum2, opens, mixed, q1_tile, q2_tile, k1, k2, v, channel, rules,
            batch, head, group, row, at, own, end, T, S, FACTOR,
            D, E, MAPS, SHARED, CAUSAL, PLAIN, False, BLOCK_D, BLOCK_E, BLOCK_N,
        )  # fmt: skip
    acc1, top1, sum1, acc2, top2, sum2 = read_range(
        acc1, top1, sum1, acc2, top2, sum2, mixed, hi, q1_tile, q2_tile, k1, k2, v, channel, rules,
        batch, head, group, row, at, own, end, T, S, FACTOR,
        D, E, MAPS, SHARED, CAUSAL, PLAIN, True, BLOCK_D, BLOCK_E, BLOCK_N,
    )  # fmt: skip

    inverse, top1, log1 = finish_rows(top1, sum1)
    read1 = acc1 * inverse[:, None]
    result, read2, log2 = read1, read1, log1
    if MAPS == 2:
        inverse, top2, log2 = finish_rows(top2, sum2)
        read2 = acc2 * inverse[:, None]
        factor = load(lam, batch, head, start_m, 0, T, 1, BLOCK_M, 1, True)
        # A row that attends nothing is 0 whatever its lam.
        result = read1 - tl.where(inverse[:, None] == 0.0, 0.0, factor) * read2
    store(out, result, batch, head, start_m, channel, T, E, BLOCK_M, BLOCK_E)
    if SAVE:
        if MAPS == 2:
            store(first, read1, batch, head, start_m, channel, T, E, BLOCK_M, BLOCK_E)
            store(second, read2, batch, head, start_m, channel, T, E, BLOCK_M, BLOCK_E)
        row = start_m + tl.arange(0, BLOCK_M)
        # The first slice of V writes the numbers of the row.
        mine = row < tl.where(channel == 0, T, 0)
        tl.store(maximum + row_number(0, batch, head, row, B, H, T), top1, mask=mine)
        tl.store(log_sum + row_number(0, batch, head, row, B, H, T), log1, mask=mine)
        if MAPS == 2:
            tl.store(maximum + row_number(1, batch, head, row, B, H, T), top2, mask=mine)
            tl.store(log_sum + row_number(1, batch, head, row, B, H, T), log2, mask=mine)
