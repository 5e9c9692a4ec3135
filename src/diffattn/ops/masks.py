"""Who attends to whom: every restriction of a call, combined into one mask.

B batch, T queries, S keys, H output heads. The queries are the last T positions before a row's key length (before S
without key lengths); positions count from 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Restrictions:
    """What a call says about visibility; the fields are those of `diff_attention`."""

    attn_mask: Tensor | None = None
    is_causal: bool = False
    window: int | None = None
    documents: Tensor | None = None
    key_lengths: Tensor | None = None
    alibi: Tensor | None = None

    def only_causal(self) -> bool:
        """Whether the causal rule is all there is (a window excluded)."""
        others = (self.attn_mask, self.window, self.documents, self.key_lengths, self.alibi)
        return self.is_causal and all(other is None for other in others)


@dataclass(frozen=True)
class Mask:
    """What is added to the logits, and which rows have nothing to attend."""

    values: Tensor | None
    """4 dimensions, broadcastable to [B, H, T, S]: bool (True = may attend) or float (added); None: all is visible.
    Rows without any key are left open here, so that no softmax is taken over nothing."""
    empty: Tensor | None
    """Bool, 4 dimensions, broadcastable to [B, H, T, 1]: rows whose result must be exactly 0; None: there are none."""


def build_mask(given: Restrictions, queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> Mask:
    """Combines all restrictions of a call with `queries` = T and `keys` = S; a float mask has `dtype`.

    Memory O(T * S), times B or H only where a restriction differs between them.
    """
    query_at = _query_positions(given.key_lengths, queries, keys, device)
    key_at = torch.arange(keys, device=device)
    visible = _all(
        _causal(given, query_at, key_at),
        None if given.key_lengths is None else key_at < given.key_lengths[:, None, None, None],
        None if given.documents is None else _same_document(given.documents, query_at),
        _may_attend(given.attn_mask),
    )
    if visible is None and given.alibi is None and given.attn_mask is None:
        return Mask(None, None)
    empty = None
    if visible is not None and _rows_can_be_empty(given, queries, keys):
        empty = ~visible.any(-1, keepdim=True)
        visible = visible | empty
    bias = _bias(given, query_at, key_at, dtype)
    if bias is not None and visible is not None:
        bias = bias if empty is None else bias.masked_fill(empty, 0.0)
        bias = torch.where(visible, bias, -torch.inf)
    return Mask(_of_four_dimensions(visible if bias is None else bias), _of_four_dimensions(empty))


def additive(values: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as something to add to logits: bool becomes 0 and -inf."""
    if values.dtype != torch.bool:
        return values.to(dtype)
    return torch.zeros((), dtype=dtype, device=values.device).where(values, -torch.inf)


def _query_positions(key_lengths: Tensor | None, queries: int, keys: int, device: torch.device) -> Tensor:
    """Absolute position of each query, [T, 1] or [B, 1, T, 1]; below 0 where there are more queries than keys."""
    steps = torch.arange(queries, device=device)[:, None]
    end = keys if key_lengths is None else key_lengths[:, None, None, None]
    return end - queries + steps


def _causal(given: Restrictions, query_at: Tensor, key_at: Tensor) -> Tensor | None:
    # A single query is the last position: under the causal rule it sees every key that exists.
    past = key_at <= query_at if given.is_causal and query_at.shape[-2] > 1 else None
    recent = None if given.window is None else key_at > query_at - given.window
    return _all(past, recent)


def _same_document(documents: Tensor, query_at: Tensor) -> Tensor:
    """[B, 1, T, S]: both in one document, the query not in padding (then the key is not either)."""
    if query_at.dim() == 2:
        of_query = documents[:, None, documents.shape[1] - query_at.shape[0] :, None]
    else:
        ids = documents.gather(1, query_at[:, 0, :, 0].clamp(min=0).long())
        of_query = ids[:, None, :, None].masked_fill(query_at < 0, -1)
    return (documents[:, None, None, :] == of_query) & (of_query >= 0)


def _may_attend(attn_mask: Tensor | None) -> Tensor | None:
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return attn_mask
    # A NaN stays visible: it belongs in the result.
    return attn_mask.detach() != -torch.inf


def _rows_can_be_empty(given: Restrictions, queries: int, keys: int) -> bool:
    """Without these, each query sees at least its own position."""
    too_many_queries = given.is_causal and queries > keys
    return too_many_queries or any(x is not None for x in (given.attn_mask, given.documents, given.key_lengths))


def _bias(given: Restrictions, query_at: Tensor, key_at: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What is added to visible logits: the float mask, and ALiBi (arXiv 2108.12409) as minus slope times distance."""
    bias = None
    if given.attn_mask is not None and given.attn_mask.dtype != torch.bool:
        bias = given.attn_mask.to(dtype)
    if given.alibi is not None:
        distance = (key_at - query_at).abs().to(dtype)
        slopes = given.alibi.to(dtype)[:, None, None] * -distance
        bias = slopes if bias is None else bias + slopes
    return bias


def _of_four_dimensions(x: Tensor | None) -> Tensor | None:
    return None if x is None else x[(None,) * (4 - x.dim())]


def _all(*conditions: Tensor | None) -> Tensor | None:
    combined = None
    for condition in conditions:
        if condition is not None:
            combined = condition if combined is None else combined & condition
    return combined
