"""The backward pass for what belongs to queries: dQ1 and dQ2, and before it the inner products D1 and D2.

A program owns BLOCK_M queries of one head: their Q1, Q2 and dO stay, and it walks over keys as the forward pass does:

    dA   = dO V^T                                      [BLOCK_M, BLOCK_N], once for both maps
    dQ1 += P1 * (dA - D1) K1 * scale
    dQ2 -= P2 * (dA - D2) K2 * scale * lam             scale and lam, constant along a row, once at the end

4 D + E for a query and key. `inner_kernel` comes first: D_i = dO . (A_i v) for each row; -D2 is lam's gradient.
"""

from __future__ import annotations

from diffattn.ops.triton.gradient_keys import saved_weights
from diffattn.ops.triton.language import constexpr, jit, tl
from diffattn.ops.triton.tiles import load, product, row_number, store
from diffattn.ops.triton.visible import key_end, key_ranges, logits, own_documents, visible


@jit
def inner_kernel(
    grad, first, second, inner, B, H, T, E: constexpr, MAPS: constexpr, BLOCK_E: constexpr,
    BLOCK_M: constexpr,
):  # fmt: skip
    """Row by row, the gradient of the result times what each map read: inner [M, B, H, T], in float32."""
    blocks = tl.cdiv(T, BLOCK_M)
    start = tl.program_id(0) % blocks * BLOCK_M
    batch = tl.program_id(0) // blocks // H
    head = tl.program_id(0) // blocks % H
    row = start + tl.arange(0, BLOCK_M)
    grad_tile = load(grad, batch, head, start, 0, T, E, BLOCK_M, BLOCK_E, True).to(tl.float32)
    read = load(first, batch, head, start, 0, T, E, BLOCK_M, BLOCK_E, True).to(tl.float32)
    tl.store(inner + row_number(0, batch, head, row, B, H, T), tl.sum(grad_tile * read, 1), mask=row < T)
    if MAPS == 2:
        read = load(second, batch, head, start, 0, T, E, BLOCK_M, BLOCK_E, True).to(tl.float32)
        tl.store(inner + row_number(1, batch, head, row, B, H, T), tl.sum(grad_tile * read, 1), mask=row < T)


@jit
def collect_range(
    dq1, dq2, first, last, q1_tile, q2_tile, grad_tile, top1, log1, dot1, top2, log2, dot2, k1, k2, v, rules, batch,
    head, group, row, at, own, end, T, S, FACTOR, D: constexpr, E: constexpr, MAPS: constexpr,
    SHARED: constexpr, CAUSAL: constexpr, PLAIN: constexpr, MIXED: constexpr, BLOCK_D: constexpr,
    BLOCK_E: constexpr, BLOCK_N: constexpr,
):  # fmt: skip
    """What keys first..last send to the queries; row, at, own and the saved numbers are [BLOCK_M, 1]."""
    for start in range(first, last, BLOCK_N):
        key = (start + tl.arange(0, BLOCK_N))[None, :]
        seen = key
        if MIXED:
            seen = visible(rules, batch, head, row, at, key, own, end, T, S, CAUSAL)
        v_tile = load(v, batch, group, start, 0, S, E, BLOCK_N, BLOCK_E, MIXED)
        da = product(grad_tile, tl.trans(v_tile))
        k_tile = load(k1, batch, group, start, 0, S, D, BLOCK_N, BLOCK_D, MIXED)
        t = logits(q1_tile, k_tile, seen, rules, batch, head, row, at, key, T, S, FACTOR, PLAIN, MIXED)
        p = saved_weights(t, top1, log1, FACTOR, PLAIN)
        dq1 += product((p * (da - dot1)).to(k_tile.dtype), k_tile)
        if MAPS == 2:
            if not SHARED:
                k_tile = load(k2, batch, group, start, 0, S, D, BLOCK_N, BLOCK_D, MIXED)
            t = logits(q2_tile, k_tile, seen, rules, batch, head, row, at, key, T, S, FACTOR, PLAIN, MIXED)
            p = saved_weights(t, top2, log2, FACTOR, PLAIN)
            dq2 += product((p * (da - dot2)).to(k_tile.dtype), k_tile)
    return dq1, dq2


@jit
def queries_kernel(
    q1, k1, q2, k2, v, lam, grad, maximum, log_sum, inner, dq1, dq2, rules, B, H, G, T, S, SCALE, FACTOR,
    D: constexpr, E: constexpr, MAPS: constexpr, SHARED: constexpr, CAUSAL: constexpr,
    PLAIN: constexpr, OPEN: constexpr,
    BLOCK_D: constexpr, BLOCK_E: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr,
):  # fmt: skip
    """One program for each block of queries, batch and head."""
    blocks = tl.cdiv(T, BLOCK_M)
    start_m = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    batch = tl.program_id(0) // blocks // H
    head = tl.program_id(0) // blocks % H
    group = head // (H // G)

    end = key_end(rules, batch, S)
    row = start_m + tl.arange(0, BLOCK_M)[:, None]
    inside = row < T
    at = end - T + row
    own = own_documents(rules, batch, tl.where(inside, at, -1))
    grad_tile = load(grad, batch, head, start_m, 0, T, E, BLOCK_M, BLOCK_E, True)
    q1_tile = load(q1, batch, head, start_m, 0, T, D, BLOCK_M, BLOCK_D, True)
    top1 = tl.load(maximum + row_number(0, batch, head, row, B, H, T), mask=inside, other=0.0)
    log1 = tl.load(log_sum + row_number(0, batch, head, row, B, H, T), mask=inside, other=float("inf"))
    dot1 = tl.load(inner + row_number(0, batch, head, row, B, H, T), mask=inside, other=0.0)
    sum_q1 = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    q2_tile, top2, log2, dot2 = q1_tile, top1, log1, dot1
    sum_q2 = tl.zeros([1], tl.float32)
    if MAPS == 2:
        q2_tile = load(q2, batch, head, start_m, 0, T, D, BLOCK_M, BLOCK_D, True)
        top2 = tl.load(maximum + row_number(1, batch, head, row, B, H, T), mask=inside, other=0.0)
        log2 = tl.load(log_sum + row_number(1, batch, head, row, B, H, T), mask=inside, other=float("inf"))
        dot2 = tl.load(inner + row_number(1, batch, head, row, B, H, T), mask=inside, other=0.0)
        sum_q2 = sum_q1

    lo, opens, mixed, hi = key_ranges(rules, batch, own, start_m, T, end, CAUSAL, OPEN, BLOCK_M, BLOCK_N)
    if rules.window is not None:
        sum_q1, sum_q2 = collect_range(
            sum_q1, sum_q2, lo, opens, q1_tile, q2_tile, grad_tile, top1, log1, dot1, top2, log2, dot2, k1, k2, v,
            rules, batch, head, group, row, at, own, end, T, S, FACTOR,
            D, E, MAPS, SHARED, CAUSAL, PLAIN, True, BLOCK_D, BLOCK_E, BLOCK_N,
        )  # fmt: skip
    if OPEN:
        sum_q1, sum_q2 = collect_range(
            sum_q1, sum_q2, opens, mixed, q1_tile, q2_tile, grad_tile, top1, log1, dot1, top2, log2, dot2, k1, k2, v,
            rules, batch, head, group, row, at, own, end, T, S, FACTOR,
            D, E, MAPS, SHARED, CAUSAL, PLAIN, False, BLOCK_D, BLOCK_E, BLOCK_N,
        )  # fmt: skip
    sum_q1, sum_q2 = collect_range(
        sum_q1, sum_q2, mixed, hi, q1_tile, q2_tile, grad_tile, top1, log1, dot1, top2, log2, dot2, k1, k2, v,
        rules, batch, head, group, row, at, own, end, T, S, FACTOR,
        D, E, MAPS, SHARED, CAUSAL, PLAIN, True, BLOCK_D, BLOCK_E, BLOCK_N,
    )  # fmt: skip

    store(dq1, sum_q1 * SCALE, batch, head, start_m, 0, T, D, BLOCK_M, BLOCK_D)
    if MAPS == 2:
        factor = load(lam, batch, head, start_m, 0, T, 1, BLOCK_M, 1, True)
        store(dq2, sum_q2 * (-SCALE * factor), batch, head, start_m, 0, T, D, BLOCK_M, BLOCK_D)
