"""Attention that is no softmax of logits: the map is computed entry by entry, for tiles of queries.

Memory grows with T, not with T * S: only one tile's maps exist at a time, and the backward pass computes them again.
Letters as in `diffattn.ops`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from diffattn.ops.call import transformed
from diffattn.ops.checks import check_restrictions
from diffattn.ops.masks import Restrictions, visibility
from diffattn.ops.reference import compute_dtype, full_precision

ELEMENTS = 2**22
"""Entries [B, H, rows, S] of one map that are computed at once."""


@dataclass(frozen=True)
class View:
    """What the T queries of a tile see of the S keys."""

    visible: Tensor | None
    """Bool, broadcastable to [B, H, T, S]; None: everything."""
    bias: Tensor | None
    """What position biases and float masks add to the logits, broadcastable to [B, H, T, S]; None: nothing."""
    keys: int
    """S."""
    whole: bool
    """The tile holds all queries of the call."""

    def biased(self, logits: Tensor) -> Tensor:
        """Logits [B, H, T, S] with the bias; what a scale or an inner nonlinearity does to them comes before."""
        if self.bias is None:
            return logits
        return logits + (self.bias if self.visible is None else self.bias.masked_fill(~self.visible, 0.0))

    def hide(self, weights: Tensor, by: float = 0.0) -> Tensor:
        """Weights or logits [B, H, T, S] with `by` for every key that a query may not attend."""
        return weights if self.visible is None else weights.masked_fill(~self.visible, by)

    def softmax(self, logits: Tensor) -> Tensor:
        """softmax(logits + bias) over the visible keys; 0 in rows that see none."""
        if self.visible is None:
            return self.biased(logits).softmax(-1)
        # A finite number, not -inf: a row without any key would be NaN, and its gradient too.
        lowest = torch.finfo(logits.dtype).min
        return self.hide(self.hide(self.biased(logits), lowest).softmax(-1))

    def count(self, like: Tensor) -> Tensor:
        """How many keys each query sees, at least 1, broadcastable to [B, H, T, 1], in the dtype of `like`."""
        if self.visible is None:
            return like.new_full((1, 1, 1, 1), self.keys)
        return self.visible.sum(-1, keepdim=True).clamp(min=1).to(like.dtype)


Attend = Callable[[Sequence[Tensor], Sequence[Tensor], View], Tensor]


def by_rows(
    attend: Attend,
    rows: Sequence[Tensor],
    shared: Sequence[Tensor],
    given: Restrictions,
    parameters: Sequence[Tensor] = (),
) -> Tensor:
    """Join attend(tile of every one of `rows`, shared, what the tile sees) over tiles of queries, along T.

    rows: tensors [B, *, T, *] that have a row for each query, the queries [B, H, T, D] first; they come to `attend`
    in float32 (float64 for float64), outside autocast. shared: what every tile needs, the keys [B, G, S, D] first.
    parameters: further leaves that `attend` uses by itself. It gives [B, H, tile, E]. With more than one tile each is
    computed again in the backward pass, and there is no second derivative. ValueError: restrictions that do not fit.
    """
    q, keys = rows[0], shared[0].shape[2]
    check_restrictions(given, q, keys)
    dtype = compute_dtype(q.dtype)

    def tile(part: range, rows: Sequence[Tensor], *shared: Tensor) -> Tensor:
        # What the tile sees is made in here: as an argument it would be kept for the backward pass, O(T * S).
        view = View(
            *visibility(given, q.shape[2], keys, q.device, dtype, (part, range(keys))), keys, len(part) == q.shape[2]
        )
        with full_precision(q.device):
            return attend([x[:, :, part.start : part.stop].to(dtype) for x in rows], shared, view)

    height = tile_height(q.shape[0] * q.shape[1], q.shape[2], keys)
    parts = [range(start, min(start + height, q.shape[2])) for start in range(0, q.shape[2], height)]
    if len(parts) <= 1 or not torch.is_grad_enabled() or _differentiates_masks(given):
        return torch.cat([tile(part, rows, *shared) for part in parts or [range(0)]], dim=2)
    if torch.compiler.is_compiling() or transformed():
        again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([again(tile, part, rows, *shared) for part in parts], dim=2)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return _Tiles.apply(tile, parts, len(rows), len(shared), *rows, *shared, *parameters)


class _Tiles(torch.autograd.Function):
    """What `checkpoint` would do, but without anything small that stays between the large tensors of two tiles: there
    glibc would find no room for the next tile, and the process would grow with T * S all the same."""

    @staticmethod
    def forward(
        ctx: Any, tile: Callable[..., Tensor], parts: list[range], rows: int, shared: int, *tensors: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.plan = tile, parts, rows, rows + shared
        out = None
        for part in parts:
            made = tile(part, tensors[:rows], *tensors[rows : rows + shared])
            if out is None:
                out = made.new_empty((*made.shape[:2], parts[-1].stop, made.shape[-1]))
            out[:, :, part.start : part.stop] = made
        assert out is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,) = grads
        tile, parts, rows, tiled = ctx.plan
        wanted = ctx.needs_input_grad[4:]
        # Parameters are used by `attend` itself, so they stand for themselves; the others are leaves of their own.
        leaves = [x.detach().requires_grad_(need) for x, need in zip(ctx.saved_tensors[:tiled], wanted, strict=False)]
        inputs = [*leaves, *ctx.saved_tensors[tiled:]]
        totals = [torch.zeros_like(x) if need else None for x, need in zip(inputs, wanted, strict=True)]
        chosen = [(x, total) for x, total in zip(inputs, totals, strict=True) if total is not None]
        for part in parts:
            with torch.enable_grad():
                made = tile(part, leaves[:rows], *leaves[rows:])
            found = torch.autograd.grad(
                made, [x for x, _ in chosen], grad[:, :, part.start : part.stop], allow_unused=True
            )
            for (_, total), new in zip(chosen, found, strict=True):
                if new is not None:
                    total += new
        return None, None, None, None, *totals


def _differentiates_masks(given: Restrictions) -> bool:
    """Whether a float mask or slopes want gradients, which tiles that are computed again do not give them."""
    return any(x is not None and x.requires_grad for x in (given.attn_mask, given.alibi))


def across_heads(matrix: Tensor, maps: Tensor) -> Tensor:
    """Combine maps [B, H, T, S] into [B, N, T, S] by a matrix [N, H], the same at every query and key."""
    return (matrix.to(maps.dtype) @ maps.flatten(2)).unflatten(2, maps.shape[2:])


def tile_height(maps: int, queries: int, keys: int) -> int:
    """Queries of a tile, of `maps` = B * H maps in all."""
    return max(1, min(queries, ELEMENTS // max(1, maps * keys)))
