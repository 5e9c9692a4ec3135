"""The operators on any device in tiles of queries, in plain PyTorch: memory grows with T, not with T * S.

B batch, T queries, S keys, H output heads, G key/value groups, D query/key width, E value width. A tile is N groups of
one batch row, R queries of all their heads, and the L keys that these can reach (causal rule and window hide the rest).

The whole rows of both maps of a tile lie in buffers that every tile uses again, so that the maps are combined BEFORE
the one product with V: 2 D + E multiply-adds for each pair of query and key instead of 2 D + 2 E. The backward pass
computes the maps again and saves nothing but the operands. From a row of dA it subtracts the sum of A dA over that very
row, so that a row which sees one key has gradients of exactly 0.

16-bit operands are widened for one batch row at a time: maps kept in bfloat16 would make lam's gradient wrong by 15 %.
Both passes are operators of torch.library: a graph of torch.compile holds each as one node, not as an unrolled loop.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from diffattn.ops.call import Call, transformed
from diffattn.ops.masks import Restrictions, additive, build_mask, reach, undecided
from diffattn.ops.reference import compute_dtype

FUSES_NORM = False

ROWS = 128
"""Of one product in a tile: R times the heads that share a group. Twice as many for long sequences, where the part of a
tile that the causal rule hides is small (0.61 for 0.65 of four calls' time with 4096 queries)."""
LONG = 2048
ELEMENTS = 2**20
"""Of one map of a tile on a CPU, unless one group has more: less leaves the interpreter with a share of the time."""


def unavailable() -> str | None:
    """It runs everywhere."""
    return None


def refuses(call: Call) -> str | None:
    """It has no gradients of masks and slopes, and no rules for transforms."""
    if transformed():
        return "torch.func and forward-mode differentiation need impl='reference'"
    for name, x in (("attn_mask", call.given.attn_mask), ("alibi", call.given.alibi)):
        if x is not None and x.requires_grad:
            return f"{name} requires grad; impl='reference' and 'sdpa' differentiate it, or pass {name}.detach()"
    return None


def run(call: Call) -> Tensor:
    """A v, or (A1 - lam A2) v, [B, H, T, E], in float32 or float64."""
    q, k, given = call.queries[0], call.keys[0], call.given
    q2 = k2 = lam = None
    if call.maps == 2:
        q2, k2, lam = call.queries[1], None if call.keys[1] is k else call.keys[1], call.lam
        if not isinstance(lam, Tensor):
            lam = torch.full((), lam, dtype=compute_dtype(q.dtype), device=q.device)
    return _blocked(
        q, k, call.v, q2, k2, lam, call.sink, given.attn_mask, given.is_causal, given.window, given.documents,
        given.key_lengths, given.alibi, call.scale,
    )  # fmt: skip


@dataclass(frozen=True)
class _Tile:
    """Operands are in the dtype of the computation; a product's rows are H / G heads times R queries."""

    at: tuple[int, slice, slice]
    """Its part of [B, H, T, *]."""
    under: tuple[int, slice, slice]
    """Its part of [B, G, S, *]."""
    queries: list[Tensor]
    """Of each map, times the scale, [N, rows, D]."""
    keys: list[Tensor]
    """Of each map, [N, L, D]."""
    v: Tensor
    """[N, L, E]."""
    lam: Tensor | None
    """[N, rows, 1]."""
    sink: Tensor | None
    """[heads, 1]."""
    biases: list[tuple[slice, Tensor]]
    """Where along the keys something is added to the logits, and what, [1 or heads, R or 1, that many or 1]."""
    empty: Tensor | None
    """[1 or heads, R or 1, 1]: queries that have nothing to attend."""

    def by_head(self, x: Tensor) -> Tensor:
        """[N, rows, *] as [heads, R, *]."""
        return x.view(-1, self.at[2].stop - self.at[2].start, x.shape[-1])

    def held_in(self, buffer: Tensor) -> Tensor:
        """The buffer's beginning in the shape of a map: [N, rows, L], with a sink [N, rows, L + 1]."""
        shape = (*self.queries[0].shape[:2], self.v.shape[1] + (self.sink is not None))
        return buffer[: math.prod(shape)].view(shape)

    def map(self, index: int, buffer: Tensor) -> Tensor:
        """softmax(scale q k^T + mask), held in the buffer."""
        found = self.held_in(buffer)
        torch.bmm(self.queries[index], self.keys[index].mT, out=found[..., : self.v.shape[1]])
        by_head = self.by_head(found)
        for where, values in self.biases:
            by_head[..., where].add_(values)
        if self.sink is not None:
            by_head[..., -1] = self.sink
        return torch.softmax(found, -1, out=found)

    def without_empty(self, x: Tensor) -> Tensor:
        """[heads, R, *] with zeros for queries that have nothing to attend."""
        return x if self.empty is None else x.masked_fill(self.empty, 0.0)


def _sizes(call: Call) -> tuple[int, int, int]:
    """Queries of a tile, groups of a tile, elements of a map of the largest tile."""
    (_, heads, queries, _), (_, groups, keys, _) = call.queries[0].shape, call.keys[0].shape
    share = heads // groups
    rows = 2 * ROWS if queries >= LONG else ROWS
    height = max(1, min(rows // share, queries))
    if call.given.window is not None and call.given.key_lengths is None:
        keys = min(keys, call.given.window + height - 1)
    one = share * height * (keys + (call.sink is not None))
    # Whatever is not a CPU is taken for something that wants more work at a time.
    elements = ELEMENTS if call.v.device.type == "cpu" else 16 * ELEMENTS
    at_once = max(1, min(groups, elements // max(one, 1)))
    return height, at_once, at_once * one


def _tiles(call: Call) -> Iterator[_Tile]:
    """All tiles that reach a key, in a fixed order, so that sums over tiles are the same in every run."""
    (batch, heads, queries, _), (_, groups, keys, _) = call.queries[0].shape, call.keys[0].shape
    share, (height, at_once, _) = heads // groups, _sizes(call)
    dtype = compute_dtype(call.v.dtype)
    for b in range(batch):
        given, length = call.given.of_batch_row(b, keys)
        wide = {id(x): x[b].to(dtype) for x in (*call.keys, call.v)}
        for start in range(0, queries, height):
            rows = range(start, min(start + height, queries))
            reached = reach(given, rows, queries, length)
            under = slice(reached.start, reached.stop)
            hidden = None
            for first in range(0, groups if reached else 0, at_once):
                in_groups = slice(first, min(first + at_once, groups))
                in_heads = slice(in_groups.start * share, in_groups.stop * share)
                if hidden is None or given.differs_between_heads():
                    hidden = _masked(given.of_heads(in_heads), rows, reached, queries, length, call.v.device, dtype)
                at, count = (b, in_heads, slice(rows.start, rows.stop)), in_groups.stop - in_groups.start
                yield _Tile(
                    at=at,
                    under=(b, in_groups, under),
                    queries=[(q[at].to(dtype) * call.scale).reshape(count, -1, q.shape[-1]) for q in call.queries],
                    keys=[wide[id(k)][in_groups, under] for k in call.keys],
                    v=wide[id(call.v)][in_groups, under],
                    lam=call.lam.expand(*call.queries[0].shape[:3], 1)[at].reshape(count, -1, 1)
                    if isinstance(call.lam, Tensor)
                    else None,
                    sink=None if call.sink is None else call.sink[in_heads, None],
                    biases=hidden[0],
                    empty=hidden[1],
                )


def _masked(
    given: Restrictions, rows: range, reached: range, queries: int, keys: int, device: torch.device, dtype: torch.dtype
) -> tuple[list[tuple[slice, Tensor]], Tensor | None]:
    """`biases` and `empty` of a tile."""
    biases, empty = [], None
    for columns in undecided(given, rows, reached, queries, keys):
        mask = build_mask(given, queries, keys, device, dtype, (rows, columns))
        if mask.values is not None:
            where = slice(columns.start - reached.start, columns.stop - reached.start)
            biases.append((where, additive(mask.values, dtype)[0]))
        if mask.empty is not None:
            empty = mask.empty[0]
    return biases, empty


def _forward(call: Call) -> Tensor:
    out = _zeros(call.queries[0], call.v.shape[-1], compute_dtype(call.v.dtype))
    buffers = out.new_empty(call.maps, _sizes(call)[2])
    for tile in _tiles(call):
        weights = tile.map(0, buffers[0])
        if tile.lam is not None:
            weights = weights.addcmul_(tile.map(1, buffers[1]), tile.lam, value=-1)
        read = torch.bmm(weights[..., : tile.v.shape[1]], tile.v)
        out[tile.at] = tile.without_empty(tile.by_head(read))
    return out


def _backward(grad: Tensor, call: Call) -> list[Tensor]:
    """Of the operands in the order q1, k1, v and, where they exist, q2, k2, lam, sink."""
    dtype = compute_dtype(call.v.dtype)
    to_q = [_zeros(q, q.shape[-1], q.dtype) for q in call.queries]
    to_k = [_zeros(k, k.shape[-1], dtype) for k in call.keys[: len({id(k) for k in call.keys})]]
    to_v = _zeros(call.v, call.v.shape[-1], dtype)
    to_lam = grad.new_zeros((*grad.shape[:3], 1), dtype=dtype)
    to_sink = grad.new_zeros(grad.shape[1], dtype=dtype)
    buffers = grad.new_empty((call.maps + 2, _sizes(call)[2]), dtype=dtype)
    for tile in _tiles(call):
        maps = [tile.map(i, buffers[i]) for i in range(call.maps)]
        seen = slice(tile.v.shape[1])
        to_out = tile.without_empty(grad[tile.at].to(dtype)).reshape(*maps[0].shape[:2], -1)
        to_weights = tile.held_in(buffers[-1])
        torch.bmm(to_out, tile.v.mT, out=to_weights[..., seen])
        to_weights[..., seen.stop :] = 0.0
        work, weights = tile.held_in(buffers[-2]), maps[0]
        if tile.lam is not None:
            weights = torch.addcmul(maps[0], maps[1], tile.lam, value=-1, out=work)
            to_lam[tile.at] = -tile.by_head(torch.linalg.vecdot(maps[1], to_weights)[..., None])
        to_v[tile.under].baddbmm_(weights[..., seen].mT, to_out)
        for i, found in enumerate(maps):
            factor = 1.0 if i == 0 or tile.lam is None else -tile.lam
            torch.ops.aten._softmax_backward_data.out(to_weights, found, -1, dtype, grad_input=work)
            to_logits = work[..., seen]
            to_q[i][tile.at] = tile.by_head(torch.bmm(to_logits, tile.keys[i]) * (factor * call.scale))
            to_k[i % len(to_k)][tile.under].baddbmm_(to_logits.mT, tile.queries[i] * factor)
        if call.sink is not None:
            to_sink[tile.at[1]] += tile.by_head(work)[..., -1].sum(-1)
    found = [
        to_q[0],
        to_k[0].to(call.v.dtype),
        to_v.to(call.v.dtype),
        *to_q[1:],
        *(x.to(call.v.dtype) for x in to_k[1:]),
    ]
    if isinstance(call.lam, Tensor):
        found.append(to_lam.sum_to_size(call.lam.shape))
    if call.sink is not None:
        found.append(to_sink.to(call.sink.dtype))
    return found


def _zeros(like: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """[B, N, length, width] with the heads of a token side by side, as projections have them."""
    batch, heads, length, _ = like.shape
    return like.new_zeros((batch, length, heads, width), dtype=dtype).transpose(1, 2)


_OPERANDS = (
    "Tensor q1, Tensor k1, Tensor v, Tensor? q2, Tensor? k2, Tensor? lam, Tensor? sink, Tensor? attn_mask, "
    "bool is_causal, SymInt? window, Tensor? documents, Tensor? key_lengths, Tensor? alibi, float scale"
)


def _call(
    q1: Tensor, k1: Tensor, v: Tensor, q2: Tensor | None, k2: Tensor | None, lam: Tensor | None, sink: Tensor | None,
    attn_mask: Tensor | None, is_causal: bool, window: int | None, documents: Tensor | None,
    key_lengths: Tensor | None, alibi: Tensor | None, scale: float,
) -> Call:  # fmt: skip
    """The operators' flat arguments as a call; no k2: the maps share their keys."""
    given = Restrictions(attn_mask, is_causal, window, documents, key_lengths, alibi)
    if q2 is None or lam is None:
        return Call((q1,), (k1,), v, 0.0, sink, given, scale)
    return Call((q1, q2), (k1, k1 if k2 is None else k2), v, lam, sink, given, scale)


@torch.library.custom_op("diffattn::blocked", mutates_args=(), schema=f"({_OPERANDS}) -> Tensor")
def _blocked(*operands: Any) -> Tensor:
    return _forward(_call(*operands))


@torch.library.custom_op(
    "diffattn::blocked_backward", mutates_args=(), schema=f"(Tensor grad, {_OPERANDS}) -> Tensor[]"
)
def _blocked_backward(grad: Tensor, *operands: Any) -> list[Tensor]:
    return _backward(grad, _call(*operands))


@_blocked.register_fake
def _(*operands: Any) -> Tensor:
    call = _call(*operands)
    return _zeros(call.queries[0], call.v.shape[-1], compute_dtype(call.v.dtype))


@_blocked_backward.register_fake
def _(grad: Tensor, *operands: Any) -> list[Tensor]:
    q1, k1, v, q2, k2, lam, sink = operands[:7]
    shaped = [None if x is None else _zeros(x, x.shape[-1], x.dtype) for x in (q1, k1, v, q2, k2)]
    flat = [None if x is None else x.new_empty(x.shape) for x in (lam, sink)]
    return [x for x in (*shaped, *flat) if x is not None]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs))
    ctx.plain = [None if isinstance(x, Tensor) else x for x in inputs]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    operands = [plain if saved is None else saved for saved, plain in zip(ctx.saved_tensors, ctx.plain, strict=True)]
    found = iter(_blocked_backward(grad, *operands))
    return tuple(None if i >= 7 or x is None else next(found) for i, x in enumerate(operands))


def _refuse_second_derivatives(ctx: Any, *grads: Any) -> None:
    raise RuntimeError("impl='blocked' has no second derivatives; impl='reference' and impl='sdpa' have them")


_blocked.register_autograd(_differentiate, setup_context=_save)
_blocked_backward.register_autograd(_refuse_second_derivatives)


@register_flop_formula(torch.ops.diffattn.blocked)
def _flops(q1: Any, k1: Any, v: Any, q2: Any, *_: Any, **__: Any) -> int:
    """Every pair of query and key counts, as in torch's own formula for fused attention."""
    batch, heads, queries, width = q1
    maps = 1 if q2 is None else 2
    return 2 * batch * heads * queries * k1[2] * (maps * width + v[3])


@register_flop_formula(torch.ops.diffattn.blocked_backward)
def _backward_flops(grad: Any, q1: Any, k1: Any, v: Any, q2: Any, *_: Any, **__: Any) -> int:
    """The maps again, their gradients to queries and keys; the gradients of the weights and of V."""
    batch, heads, queries, width = q1
    maps = 1 if q2 is None else 2
    return 2 * batch * heads * queries * k1[2] * (3 * maps * width + 2 * v[3])
