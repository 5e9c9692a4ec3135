"""Operands of a kernel, and the tiles that it reads and writes.

B batch, T queries, S keys, H output heads, G key/value groups, D query/key width, E value width, M maps. A tile is a
block of rows (positions) by a power of two of columns (channels); what lies outside of the operand is read as 0 and not
written. Row numbers are 64-bit before they meet a stride, so that no operand is too large.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from diffattn.ops.triton.language import constexpr, jit, tl


class Operand(NamedTuple):
    """A [batch, heads, positions, channels] tensor and its strides, in elements; any strides serve."""

    data: Tensor
    batch: int
    head: int
    row: int
    channel: int


def operand(x: Tensor) -> Operand:
    """What a kernel must know of a 4-dimensional tensor."""
    return Operand(x, *x.stride())


@jit
def pointers(x, batch, head, rows, columns):
    """[ROWS, COLUMNS] addresses; batch and head are scalars, rows [ROWS] and columns [COLUMNS] numbers."""
    base = x.data + tl.cast(batch, tl.int64) * x.batch + tl.cast(head, tl.int64) * x.head
    return base + (rows.to(tl.int64) * x.row)[:, None] + (columns * x.channel)[None, :]


@jit
def load(
    x,
    batch,
    head,
    start,
    channel,
    limit,
    WIDTH: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
    BOUNDED: constexpr,
):
    """[ROWS, COLUMNS] from row `start` and column `channel` on; BOUNDED: rows from `limit` on are 0."""
    rows = start + tl.arange(0, ROWS)
    columns = channel + tl.arange(0, COLUMNS)
    at = pointers(x, batch, head, rows, columns)
    if WIDTH % COLUMNS == 0:
        if BOUNDED:
            return tl.load(at, mask=(rows < limit)[:, None], other=0.0)
        return tl.load(at)
    if BOUNDED:
        return tl.load(at, mask=(rows < limit)[:, None] & (columns < WIDTH)[None, :], other=0.0)
    return tl.load(at, mask=(columns < WIDTH)[None, :], other=0.0)


@jit
def store(x, tile, batch, head, start, channel, limit, WIDTH: constexpr, ROWS: constexpr, COLUMNS: constexpr):
    """Writes a tile [ROWS, COLUMNS] in x's dtype, as far as x goes."""
    rows = start + tl.arange(0, ROWS)
    columns = channel + tl.arange(0, COLUMNS)
    inside = (rows < limit)[:, None] & (columns < WIDTH)[None, :]
    tl.store(pointers(x, batch, head, rows, columns), tile.to(x.data.dtype.element_ty), mask=inside)


@jit
def row_number(map, batch, head, rows, B, H, T):
    """Where a row's number lies in a contiguous [M, B, H, T] tensor."""
    return (tl.cast(map * B + batch, tl.int64) * H + head) * T + rows


@jit
def product(a, b):
    """a b in float32: 32-bit operands are multiplied as they are, without TF32's shorter digits."""
    return tl.dot(a, b, input_precision="ieee")


@jit
def weights(t, base, FACTOR, PLAIN: constexpr):
    """2^(logit - base) in the units of `base`: raw products times FACTOR if PLAIN, else powers of two already.

    The difference is taken first: the largest logit of a row must give exactly 1, however large it is.
    """
    if PLAIN:
        return tl.exp2((t - base) * FACTOR)
    return tl.exp2(t - base)
