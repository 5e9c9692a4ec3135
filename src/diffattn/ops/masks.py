"""Who attends to whom: every restriction of a call, combined into one mask.

B batch, T queries, S keys, H output heads. The queries are the last T positions before a row's key length (before S
without key lengths); positions count from 0.
"""

from dataclasses import dataclass, replace

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

    def of_batch_row(self, row: int, keys: int) -> tuple["Restrictions", int]:
        """The same for one batch row alone, and its number of keys: a length that lies on a CPU cuts the rest off."""
        mask, documents, lengths = self.attn_mask, self.documents, self.key_lengths
        if mask is not None:
            mask = mask[(None,) * (4 - mask.dim())]
            mask = mask[row : row + 1] if mask.shape[0] > 1 else mask
        documents = None if documents is None else documents[row : row + 1]
        lengths = None if lengths is None else lengths[row : row + 1]
        # Elsewhere, reading it would wait for the device.
        if lengths is not None and lengths.device.type == "cpu":
            keys, lengths = int(lengths), None
            mask = mask[..., :keys] if mask is not None and mask.shape[-1] > 1 else mask
            documents = None if documents is None else documents[:, :keys]
        return replace(self, attn_mask=mask, documents=documents, key_lengths=lengths), keys

    def of_heads(self, heads: slice) -> "Restrictions":
        """The same for some output heads alone; the mask has 4 dimensions or is None."""
        mask, alibi = self.attn_mask, self.alibi
        mask = mask[:, heads] if mask is not None and mask.shape[1] > 1 else mask
        return replace(self, attn_mask=mask, alibi=None if alibi is None else alibi[heads])

    def differs_between_heads(self) -> bool:
        """Whether one head's mask does not serve the others; the mask has 4 dimensions or is None."""
        return self.alibi is not None or (self.attn_mask is not None and self.attn_mask.shape[1] > 1)


@dataclass(frozen=True)
class Mask:
    """What is added to the logits, and which rows have nothing to attend."""

    values: Tensor | None
    """4 dimensions, broadcastable to [B, H, T, S]: bool (True = may attend) or float (added); None: all is visible.
    Rows without any key are left open here, so that no softmax is taken over nothing."""
    empty: Tensor | None
    """Bool, 4 dimensions, broadcastable to [B, H, T, 1]: rows whose result must be exactly 0; None: there are none."""


def build_mask(
    given: Restrictions,
    queries: int,
    keys: int,
    device: torch.device,
    dtype: torch.dtype,
    part: tuple[range, range] | None = None,
) -> Mask:
    """Combines all restrictions of a call with `queries` = T and `keys` = S; a float mask has `dtype`.

    `part` (of the queries, of the keys) asks for this part of the mask alone; a row is then empty if it may attend none
    of these keys. Memory O(T * S) of what is asked for, times B or H only where a restriction differs between them.
    """
    visible, bias = visibility(given, queries, keys, device, dtype, part)
    if visible is None and bias is None:
        return Mask(None, None)
    empty = None
    if visible is not None and _rows_can_be_empty(given, queries, keys):
        empty = ~visible.any(-1, keepdim=True)
        visible = visible | empty
    if bias is not None and visible is not None:
        bias = bias if empty is None else bias.masked_fill(empty, 0.0)
        bias = torch.where(visible, bias, -torch.inf)
    return Mask(visible if bias is None else bias, empty)


def visibility(
    given: Restrictions,
    queries: int,
    keys: int,
    device: torch.device,
    dtype: torch.dtype,
    part: tuple[range, range] | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Who may attend to whom (bool; None: all to all), and what a float mask and slopes add to the logits of `dtype`.

    Both of 4 dimensions, broadcastable to [B, H, T, S]; arguments as in `build_mask`. A float mask's -inf hides, and
    stands in both.
    """
    query_at = _query_positions(given.key_lengths, queries, keys, device)
    key_at = torch.arange(keys, device=device)
    attn_mask, columns = given.attn_mask, slice(None)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        # Before rows are found empty: a large negative number of float64 is minus infinity in float32.
        attn_mask = attn_mask.to(dtype)
    if part is not None:
        rows, columns = (slice(x.start, x.stop) for x in part)
        query_at, key_at = query_at[..., rows, :], key_at[columns]
        attn_mask = None if attn_mask is None else _part_of(attn_mask, rows, columns)
    visible = _all(
        # A single query is the last position: under the causal rule it sees every key that exists.
        key_at <= query_at if given.is_causal and queries > 1 else None,
        None if given.window is None else key_at > query_at - given.window,
        None if given.key_lengths is None else key_at < given.key_lengths[:, None, None, None],
        None if given.documents is None else _same_document(given.documents, query_at, columns),
        _may_attend(attn_mask),
    )
    bias = _bias(attn_mask, given.alibi, query_at, key_at, dtype)
    return _of_four_dimensions(visible), _of_four_dimensions(bias)


def reach(given: Restrictions, rows: range, queries: int, keys: int) -> range:
    """The keys that some of the queries `rows` may attend by the causal rule and the window; none outside."""
    start, stop = 0, keys
    first = keys - queries + rows.start
    if given.is_causal:
        stop = max(0, first + len(rows))
    # A key length that is not known here moves queries to earlier positions.
    if given.window is not None and given.key_lengths is None:
        start = max(0, first - given.window + 1)
    return range(start, stop)


def undecided(given: Restrictions, rows: range, reached: range, queries: int, keys: int) -> list[range]:
    """Those of the `reached` keys that not all the queries `rows` attend alike: where they need a mask."""
    others = (given.attn_mask, given.documents, given.key_lengths, given.alibi)
    if any(x is not None for x in others) or (given.is_causal and queries > keys):
        return [reached]
    if not given.is_causal:
        return []
    first = keys - queries + rows.start
    late = range(first + 1, reached.stop)
    if given.window is None:
        return [late] if late else []
    early = range(reached.start, max(reached.start, first + len(rows) - given.window))
    if early.stop > late.start:
        return [reached]
    return [part for part in (early, late) if part]


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


def _part_of(attn_mask: Tensor, rows: slice, columns: slice) -> Tensor:
    """Those rows and columns, where the mask has more than one."""
    if attn_mask.dim() > 1 and attn_mask.shape[-2] != 1:
        attn_mask = attn_mask[..., rows, :]
    return attn_mask[..., columns] if attn_mask.dim() and attn_mask.shape[-1] != 1 else attn_mask


def _same_document(documents: Tensor, query_at: Tensor, columns: slice) -> Tensor:
    """[B, 1, T, S]: both in one document, the query not in padding (then the key is not either)."""
    at = query_at[..., 0].expand(documents.shape[0], 1, -1)[:, 0]
    of_query = documents.gather(1, at.clamp(min=0)).masked_fill(at < 0, -1)[:, None, :, None]
    return (documents[:, None, None, columns] == of_query) & (of_query >= 0)


def _may_attend(attn_mask: Tensor | None) -> Tensor | None:
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return attn_mask
    # A NaN stays visible: it belongs in the result.
    return attn_mask.detach() != -torch.inf


def _rows_can_be_empty(given: Restrictions, queries: int, keys: int) -> bool:
    """Without these, each query sees at least its own position."""
    too_many_queries = given.is_causal and queries > keys
    return too_many_queries or any(x is not None for x in (given.attn_mask, given.documents, given.key_lengths))


def _bias(
    attn_mask: Tensor | None, alibi: Tensor | None, query_at: Tensor, key_at: Tensor, dtype: torch.dtype
) -> Tensor | None:
    """What is added to visible logits: the float mask, and ALiBi (arXiv 2108.12409) as minus slope times distance."""
    bias = None
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        bias = attn_mask
    if alibi is not None:
        distance = (key_at - query_at).abs().to(dtype)
        slopes = alibi.to(dtype)[:, None, None] * -distance
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
