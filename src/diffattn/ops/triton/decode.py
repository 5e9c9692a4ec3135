"""A few queries on a long cache: the keys are split over programs, and a second kernel puts the parts together.

One query of one head gives a GPU one program's work, and reading the cache once is all that the arithmetic costs. So a
program takes the queries of all heads of a group (BLOCK_R rows: tensor cores want at least 16, and the cache is read
once for the whole group), one slice of V, and one of SPLITS parts of the keys that these queries may attend. It leaves
its own softmax: accumulators, maxima and sums. `combine_kernel`, one program for each row, rescales the parts to their
common maximum,

    A_i v = sum_parts 2^(top - common) acc / sum_parts 2^(top - common) sum,        out = A1 v - lam A2 v.

Nothing is saved for a backward pass. A part without keys has maximum -inf and weighs nothing.
"""

from __future__ import annotations

from diffattn.ops.triton.forward import read_range
from diffattn.ops.triton.language import LOG2E, NOTHING, constexpr, jit, tl
from diffattn.ops.triton.tiles import load, row_number, store, weights
from diffattn.ops.triton.visible import key_end, own_documents


@jit
def load_rows(x, batch, head, row, inside, D: constexpr, BLOCK_D: constexpr):
    """[BLOCK_R, BLOCK_D]: rows of several heads; head, row and inside are [BLOCK_R, 1]."""
    column = tl.arange(0, BLOCK_D)[None, :]
    at = x.data + tl.cast(batch, tl.int64) * x.batch + head.to(tl.int64) * x.head + row.to(tl.int64) * x.row
    return tl.load(at + column * x.channel, mask=inside & (column < D), other=0.0)


@jit
def decode_kernel(
    q1, k1, q2, k2, v, part1, part2, maximum, total, rules, B, H, G, T, S, SPLITS, FACTOR,
    D: constexpr, E: constexpr, MAPS: constexpr, SHARED: constexpr, CAUSAL: constexpr,
    PLAIN: constexpr, BLOCK_D: constexpr, BLOCK_E: constexpr, BLOCK_R: constexpr, BLOCK_N: constexpr,
):  # fmt: skip
    """One program for each part of the keys (axis 0), block of rows with batch and group (1), slice of V (2)."""
    part = tl.program_id(0)
    rows = H // G * T
    blocks = tl.cdiv(rows, BLOCK_R)
    batch = tl.program_id(1) // blocks // G
    group = tl.program_id(1) // blocks % G
    channel = tl.program_id(2) * BLOCK_E

    member = tl.program_id(1) % blocks * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    inside = member < rows
    head = group * (H // G) + tl.where(inside, member // T, 0)
    row = tl.where(inside, member % T, T)
    end = key_end(rules, batch, S)
    at = end - T + row
    own = own_documents(rules, batch, tl.where(inside, at, -1))
    q1_tile = load_rows(q1, batch, head, row, inside, D, BLOCK_D)
    top1 = tl.full([BLOCK_R], NOTHING, tl.float32)
    sum1 = tl.zeros([BLOCK_R], tl.float32)
    acc1 = tl.zeros([BLOCK_R, BLOCK_E], tl.float32)
    q2_tile, top2, sum2, acc2 = q1_tile, top1, sum1, sum1
    if MAPS == 2:
        q2_tile = load_rows(q2, batch, head, row, inside, D, BLOCK_D)
        acc2 = acc1

    lo = 0
    if rules.window is not None:
        lo = tl.maximum(end - T - rules.window + 1, 0) // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(tl.maximum(end - lo, 0), SPLITS), BLOCK_N) * BLOCK_N
    first = lo + part * share
    last = tl.minimum(first + share, end)
    acc1, top1, sum1, acc2, top2, sum2 = read_range(
        acc1, top1, sum1, acc2, top2, sum2, first, last, q1_tile, q2_tile, k1, k2, v, channel, rules, batch, head,
        group, row, at, own, end, T, S, FACTOR,
        D, E, MAPS, SHARED, CAUSAL, PLAIN, True, BLOCK_D, BLOCK_E, BLOCK_N,
    )  # fmt: skip

    column = channel + tl.arange(0, BLOCK_E)[None, :]
    kept = inside & (column < E)
    once = member < tl.where(channel == 0, rows, 0)
    place = row_number(part, batch, head, row, B, H, T)
    tl.store(part1 + place * E + column, acc1, mask=kept)
    tl.store(maximum + place, top1[:, None], mask=once)
    tl.store(total + place, sum1[:, None], mask=once)
    if MAPS == 2:
        tl.store(part2 + place * E + column, acc2, mask=kept)
        place = row_number(SPLITS + part, batch, head, row, B, H, T)
        tl.store(maximum + place, top2[:, None], mask=once)
        tl.store(total + place, sum2[:, None], mask=once)


@jit
def combine_parts(
    parts, maximum, total, sink, map, batch, head, row, column, B, H, T, SPLITS, FACTOR, E: constexpr,
    PLAIN: constexpr, PARTS: constexpr,
):  # fmt: skip
    """A v of one row and map: [1, BLOCK_E]; 0 if no part attended anything."""
    part = tl.arange(0, PARTS)[:, None]
    there = part < SPLITS
    place = row_number(map * SPLITS + part, batch, head, row, B, H, T)
    top = tl.load(maximum + place, mask=there, other=float("-inf"))
    common = tl.max(top)
    if sink is not None:
        common = tl.maximum(common, tl.load(sink + head) * LOG2E)
    base = tl.where(common == NOTHING, 0.0, common)
    factor = weights(top, base, FACTOR, PLAIN)
    whole = tl.sum(factor * tl.load(total + place, mask=there, other=0.0))
    if sink is not None:
        whole += weights(tl.load(sink + head) * LOG2E, base, FACTOR, PLAIN)
    place = row_number(part, batch, head, row, B, H, T)
    read = tl.load(parts + place * E + column, mask=there & (column < E), other=0.0)
    return tl.sum(factor * read, 0, keep_dims=True) / tl.where(whole == 0.0, 1.0, whole)


@jit
def combine_kernel(
    part1, part2, maximum, total, lam, sink, out, B, H, T, SPLITS, FACTOR,
    E: constexpr, MAPS: constexpr, PLAIN: constexpr, BLOCK_E: constexpr, PARTS: constexpr,
):  # fmt: skip
    """One program for each row (axis 0, with batch and head) and slice of V (axis 1)."""
    row = tl.program_id(0) % T
    batch = tl.program_id(0) // T // H
    head = tl.program_id(0) // T % H
    channel = tl.program_id(1) * BLOCK_E
    column = channel + tl.arange(0, BLOCK_E)[None, :]
    result = combine_parts(
        part1, maximum, total, sink, 0, batch, head, row, column, B, H, T, SPLITS, FACTOR, E, PLAIN, PARTS
    )
    if MAPS == 2:
        second = combine_parts(
            part2, maximum, total, sink, 1, batch, head, row, column, B, H, T, SPLITS, FACTOR, E, PLAIN, PARTS
        )
        # A row that attends nothing is 0 whatever its lam.
        result -= tl.where(second == 0.0, 0.0, load(lam, batch, head, row, 0, T, 1, 1, 1, True) * second)
    store(out, result, batch, head, row, channel, T, E, 1, BLOCK_E)
