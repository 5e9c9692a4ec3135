"""The backward pass for what belongs to keys: dK1, dK2 and dV.

A program owns BLOCK_N keys of one key/value group. K1, K2 and V of its keys stay in shared memory, the three gradients
in registers; it walks over the queries of every head of the group in blocks of BLOCK_M:

    dA   = dO V^T                                      [BLOCK_M, BLOCK_N], once for both maps
    P_i  = 2^(t_i - top_i - log_i)                     recomputed from the saved rows
    dV  += (P1 - lam P2)^T dO                          once for both maps: the weights are combined first
    dK1 += (P1 * (dA - D1))^T Q1 * scale               D_i = dO . (A_i v), from `inner_kernel`
    dK2 -= (lam P2 * (dA - D2))^T Q2 * scale

Scores have queries as rows here too, though the gradients have keys: the seven numbers that each query brings are then
one or two in each thread instead of a register for every column, at the price of passing weights through shared memory.
That is 4 D + 2 E for a query and key, and `gradient_queries.py` takes 4 D + E more; the scores and dA are computed in
both, which costs less than the atomic additions that one kernel for all would need, and gives the same bits each time.
Where the maps share their keys (version 2), both terms go into one accumulator. No two programs write the same key.
"""

from __future__ import annotations

from diffattn.ops.triton.language import constexpr, jit, tl
from diffattn.ops.triton.tiles import load, product, row_number, store
from diffattn.ops.triton.visible import key_end, logits, own_documents, query_ranges, visible


@jit
def saved_weights(t, top, log, FACTOR, PLAIN: constexpr):
    """The normalised weights again: 2^(t - top) / sum, exactly 0 for a row of log-sum +inf."""
    if PLAIN:
        return tl.exp2((t - top) * FACTOR - log)
    return tl.exp2(t - top - log)


@jit
def add_queries(
    dk1, dk2, dv, first, last, k1_tile, k2_tile, v_tile, q1, q2, grad, lam, maximum, log_sum, inner, rules, batch, head,
    key, end, B, H, T, S, FACTOR, D: constexpr, E: constexpr, MAPS: constexpr, SHARED: constexpr,
    CAUSAL: constexpr, PLAIN: constexpr, MIXED: constexpr, BLOCK_D: constexpr, BLOCK_E: constexpr,
    BLOCK_M: constexpr,
):  # fmt: skip
    """What queries first..last of one head send to the keys `key` [1, BLOCK_N]."""
    for start in range(first, last, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)[:, None]
        inside = row < T
        at = end - T + row
        seen = row
        if MIXED:
            own = own_documents(rules, batch, tl.where(inside, at, -1))
            seen = visible(rules, batch, head, row, at, key, own, end, T, S, CAUSAL)
        grad_tile = load(grad, batch, head, start, 0, T, E, BLOCK_M, BLOCK_E, True)
        da = product(grad_tile, tl.trans(v_tile))

        q_tile = load(q1, batch, head, start, 0, T, D, BLOCK_M, BLOCK_D, True)
        top = tl.load(maximum + row_number(0, batch, head, row, B, H, T), mask=inside, other=0.0)
        log = tl.load(log_sum + row_number(0, batch, head, row, B, H, T), mask=inside, other=float("inf"))
        dot = tl.load(inner + row_number(0, batch, head, row, B, H, T), mask=inside, other=0.0)
        t = logits(q_tile, k1_tile, seen, rules, batch, head, row, at, key, T, S, FACTOR, PLAIN, MIXED)
        p = saved_weights(t, top, log, FACTOR, PLAIN)
        dk1 += product(tl.trans((p * (da - dot)).to(q_tile.dtype)), q_tile)
        if MAPS == 2:
            q_tile = load(q2, batch, head, start, 0, T, D, BLOCK_M, BLOCK_D, True)
            top = tl.load(maximum + row_number(1, batch, head, row, B, H, T), mask=inside, other=0.0)
            log = tl.load(log_sum + row_number(1, batch, head, row, B, H, T), mask=inside, other=float("inf"))
            dot = tl.load(inner + row_number(1, batch, head, row, B, H, T), mask=inside, other=0.0)
            t = logits(q_tile, k2_tile, seen, rules, batch, head, row, at, key, T, S, FACTOR, PLAIN, MIXED)
            factor = load(lam, batch, head, start, 0, T, 1, BLOCK_M, 1, True)
            second = saved_weights(t, top, log, FACTOR, PLAIN) * factor
            sent = product(tl.trans((second * (dot - da)).to(q_tile.dtype)), q_tile)
            if SHARED:
                dk1 += sent
            else:
                dk2 += sent
            p -= second
        dv += product(tl.trans(p.to(grad_tile.dtype)), grad_tile)
    return dk1, dk2, dv


@jit
def keys_kernel(
    q1, k1, q2, k2, v, lam, grad, maximum, log_sum, inner, dk1, dk2, dv, rules, B, H, G, T, S, SCALE, FACTOR,
    D: constexpr, E: constexpr, MAPS: constexpr, SHARED: constexpr, CAUSAL: constexpr,
    PLAIN: constexpr, OPEN: constexpr,
    BLOCK_D: constexpr, BLOCK_E: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr,
):  # fmt: skip
    """One program for each block of keys, batch and group."""
    blocks = tl.cdiv(S, BLOCK_N)
    start_n = tl.program_id(0) % blocks * BLOCK_N
    batch = tl.program_id(0) // blocks // G
    group = tl.program_id(0) // blocks % G

    end = key_end(rules, batch, S)
    key = start_n + tl.arange(0, BLOCK_N)[None, :]
    k1_tile = load(k1, batch, group, start_n, 0, S, D, BLOCK_N, BLOCK_D, True)
    v_tile = load(v, batch, group, start_n, 0, S, E, BLOCK_N, BLOCK_E, True)
    k2_tile = k1_tile
    sum_k1 = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    sum_k2 = tl.zeros([1], tl.float32)
    sum_v = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
    if MAPS == 2 and not SHARED:
        k2_tile = load(k2, batch, group, start_n, 0, S, D, BLOCK_N, BLOCK_D, True)
        sum_k2 = sum_k1

    ids = own_documents(rules, batch, tl.where(key < end, key, -1))
    lo, opens, mixed, hi = query_ranges(rules, batch, ids, start_n, T, end, CAUSAL, OPEN, BLOCK_N, BLOCK_M)
    for member in range(H // G):
        head = group * (H // G) + member
        sum_k1, sum_k2, sum_v = add_queries(
            sum_k1, sum_k2, sum_v, lo, opens, k1_tile, k2_tile, v_tile, q1, q2, grad, lam, maximum, log_sum, inner,
            rules, batch, head, key, end, B, H, T, S, FACTOR,
            D, E, MAPS, SHARED, CAUSAL, PLAIN, True, BLOCK_D, BLOCK_E, BLOCK_M,
        )  # fmt: skip
        if OPEN:
            sum_k1, sum_k2, sum_v = add_queries(
                sum_k1, sum_k2, sum_v, opens, mixed, k1_tile, k2_tile, v_tile, q1, q2, grad, lam, maximum, log_sum,
                inner, rules, batch, head, key, end, B, H, T, S, FACTOR,
                D, E, MAPS, SHARED, CAUSAL, PLAIN, False, BLOCK_D, BLOCK_E, BLOCK_M,
            )  # fmt: skip
        if rules.window is not None:
            sum_k1, sum_k2, sum_v = add_queries(
                sum_k1, sum_k2, sum_v, mixed, hi, k1_tile, k2_tile, v_tile, q1, q2, grad, lam, maximum, log_sum, inner,
                rules, batch, head, key, end, B, H, T, S, FACTOR,
                D, E, MAPS, SHARED, CAUSAL, PLAIN, True, BLOCK_D, BLOCK_E, BLOCK_M,
            )  # fmt: skip

    store(dk1, sum_k1 * SCALE, batch, group, start_n, 0, S, D, BLOCK_N, BLOCK_D)
    store(dv, sum_v, batch, group, start_n, 0, S, E, BLOCK_N, BLOCK_E)
    if MAPS == 2 and not SHARED:
        store(dk2, sum_k2 * SCALE, batch, group, start_n, 0, S, D, BLOCK_N, BLOCK_D)
