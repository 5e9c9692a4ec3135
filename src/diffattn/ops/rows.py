"""Attention that is no softmax of logits: the map is computed entry by entry, for tiles of queries.

Memory grows with T, not with T * S: only one tile's maps exist at a time, and the backward pass computes them again.
Letters as in `diffattn.ops`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from diffattn.ops.checks import check_restrictions
from diffattn.ops.masks import Restrictions, visibility
from diffattn.ops.reference import compute_dtype

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


def by_rows(
    attend: Callable[[Sequence[Tensor], View], Tensor], rows: Sequence[Tensor], keys: int, given: Restrictions
) -> Tensor:
    """Join attend(tile of every one of `rows`, what it sees) over tiles of queries, along T.

    rows: tensors [B, *, T, *] that have a row for each query, the queries [B, H, T, D] first; they come to `attend`
    in float32 (float64 for float64), outside autocast. It gives [B, H, tile, E]. With gradients and more than one tile,
    each tile is computed again in the backward pass. ValueError: restrictions that do not fit the queries and `keys`.
    """
    q = rows[0]
    check_restrictions(given, q, keys)
    dtype = compute_dtype(q.dtype)
    height = tile_height(q.shape[0] * q.shape[1], q.shape[2], keys)
    with torch.autocast(q.device.type, enabled=False):
        rows = [x.to(dtype) for x in rows]
        if height >= q.shape[2]:
            return attend(rows, View(*visibility(given, q.shape[2], keys, q.device, dtype), keys))

        def tile(part: range) -> Tensor:
            # What the tile sees is made in here: as an argument it would be kept for the backward pass, O(T * S).
            view = View(*visibility(given, q.shape[2], keys, q.device, dtype, (part, range(keys))), keys)
            return attend([x[:, :, part.start : part.stop] for x in rows], view)

        found = []
        for start in range(0, q.shape[2], height):
            part = range(start, min(start + height, q.shape[2]))
            if torch.is_grad_enabled():
                made = checkpoint(tile, part, use_reentrant=False, preserve_rng_state=False)
                assert isinstance(made, Tensor)
                found.append(made)
            else:
                found.append(tile(part))
    return torch.cat(found, dim=2)


def across_heads(matrix: Tensor, maps: Tensor) -> Tensor:
    """Combine maps [B, H, T, S] into [B, N, T, S] by a matrix [N, H], the same at every query and key."""
    return (matrix.to(maps.dtype) @ maps.flatten(2)).unflatten(2, maps.shape[2:])


def tile_height(maps: int, queries: int, keys: int) -> int:
    """Queries of a tile, of `maps` = B * H maps in all."""
    return max(1, min(queries, ELEMENTS // max(1, maps * keys)))
