"""Who attends to whom, inside a kernel: which blocks can be left out, and which entries of a block are hidden.

The rules are those of `diffattn.ops.masks`: query t is at position end - T + t, where `end` is the row's key length or
S, and all restrictions combine. Three kinds of blocks follow from them, and each kernel runs over them in order:

- hidden: causality, window, key length or documents leave nothing; they lie outside of the range and cost nothing;
- open: every entry is visible; no mask is computed, which saves a third of the arithmetic that is not matrix product;
- mixed: on the diagonal, at the window's edge, at the end, or wherever documents, a mask or alibi must be looked up.

Documents bound the range by a scan over their ids: keys outside of the first and last key whose id lies between the
smallest and largest of the block's queries. Packed documents have rising ids, so that this leaves the block's own
documents; other orders stay correct and merely skip less.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from diffattn.ops.triton.language import LOG2E, NOTHING, constexpr, jit, tl
from diffattn.ops.triton.tiles import product


class Rules(NamedTuple):
    """The restrictions of a call; None is "not given", strides count elements.

    Flat, because Triton 3.6 loses what is known of the members of a tuple within a tuple where a loop uses them.
    """

    documents: Tensor | None
    """[B, S]."""
    document_batch: int
    document_key: int
    lengths: Tensor | None
    """[B]."""
    alibi: Tensor | None
    """[H], float32."""
    shown: Tensor | None
    """A bool mask [B, H, T, S], as bytes."""
    bias: Tensor | None
    """A float mask [B, H, T, S]."""
    mask_batch: int
    mask_head: int
    mask_query: int
    mask_key: int
    window: int | None


def restrictions(
    mask: Tensor | None, window: int | None, documents: Tensor | None, lengths: Tensor | None, alibi: Tensor | None
) -> Rules:
    """The restrictions as a kernel takes them; `mask` [B, H, T, S] may be an expanded view."""
    shown, bias = (mask.view(torch.uint8), None) if mask is not None and mask.dtype == torch.bool else (None, mask)
    document_batch, document_key = (0, 0) if documents is None else documents.stride()
    mask_batch, mask_head, mask_query, mask_key = (0, 0, 0, 0) if mask is None else mask.stride()
    return Rules(
        documents=documents,
        document_batch=document_batch,
        document_key=document_key,
        lengths=None if lengths is None else lengths.contiguous(),
        alibi=None if alibi is None else alibi.float().contiguous(),
        shown=shown,
        bias=bias,
        mask_batch=mask_batch,
        mask_head=mask_head,
        mask_query=mask_query,
        mask_key=mask_key,
        window=window,
    )


@jit
def key_end(rules, batch, S):
    """Keys from here on do not exist."""
    if rules.lengths is not None:
        return tl.minimum(tl.load(rules.lengths + batch), S).to(tl.int32)
    else:  # noqa: RET505 (a compiled function has one return type, unless the branches exclude each other)
        return S


@jit
def own_documents(rules, batch, at):
    """Ids of the documents at positions `at`; -1 before the first key. Unused numbers without documents."""
    if rules.documents is not None:
        return _document_ids(rules, batch, at, at >= 0)
    else:  # noqa: RET505 (a compiled function has one return type, unless the branches exclude each other)
        return at


@jit
def document_span(rules, batch, own, start, stop):
    """First and behind the last of the positions start..stop whose document may be one of `own`'s."""
    high = tl.max(own)
    low = tl.min(tl.where(own < 0, high, own))
    first = stop
    last = start
    for chunk in range(start, stop, 1024):
        at = chunk + tl.arange(0, 1024)
        ids = _document_ids(rules, batch, at, at < stop)
        near = (ids >= 0) & (ids >= low) & (ids <= high)
        first = tl.minimum(first, tl.min(tl.where(near, at, stop)))
        last = tl.maximum(last, tl.max(tl.where(near, at + 1, start)))
    return first, last


@jit
def key_ranges(rules, batch, own, start, T, end, CAUSAL: constexpr, OPEN: constexpr, ROWS: constexpr, KEYS: constexpr):
    """lo, open, mixed, hi of the keys for queries start..start+ROWS, in blocks of KEYS from lo, a multiple of it.

    Blocks of lo..open and mixed..hi are mixed, those of open..mixed open. Without OPEN all are mixed.
    """
    last = tl.minimum(start + ROWS, T)
    lo = 0
    hi = end
    if CAUSAL:
        hi = tl.maximum(end - T + last, 0)
    if rules.window is not None:
        lo = tl.maximum(end - T + start - rules.window + 1, 0)
    if rules.documents is not None:
        first, behind = document_span(rules, batch, own, lo, hi)
        lo = first
        hi = behind
    lo = lo // KEYS * KEYS
    if not OPEN:
        return lo, lo, lo, hi
    mixed = hi // KEYS * KEYS
    if CAUSAL:
        mixed = tl.minimum(tl.maximum(end - T + start + 1, 0), end) // KEYS * KEYS
    mixed = tl.maximum(mixed, lo)
    opens = lo
    if rules.window is not None:
        opens = tl.minimum((tl.maximum(end - T + last - rules.window, 0) + KEYS - 1) // KEYS * KEYS, mixed)
    return lo, opens, mixed, hi


@jit
def query_ranges(
    rules, batch, ids, start, T, end, CAUSAL: constexpr, OPEN: constexpr, KEYS: constexpr, ROWS: constexpr
):
    """The same seen from keys start..start+KEYS with documents `ids`: lo, open, mixed, hi of the queries.

    The edge of causality lies in front here, that of the window behind: without a window mixed..hi is empty.
    """
    shift = end - T
    behind = tl.minimum(start + KEYS, end)
    lo = 0
    hi = T
    if CAUSAL:
        lo = tl.maximum(start - shift, 0)
    if rules.window is not None:
        hi = tl.minimum(T, tl.maximum(behind - 1 + rules.window - shift, 0))
    hi = tl.where(start >= end, 0, hi)
    if rules.documents is not None:
        first, last = document_span(rules, batch, ids, tl.maximum(lo + shift, 0), hi + shift)
        lo = tl.maximum(first - shift, 0)
        hi = tl.minimum(hi, last - shift)
    lo = lo // ROWS * ROWS
    all_rows = (tl.maximum(hi, lo) + ROWS - 1) // ROWS * ROWS
    if not OPEN:
        return lo, all_rows, all_rows, hi
    opens = lo
    mixed = all_rows
    if CAUSAL:
        opens = (tl.maximum(start + KEYS - 1 - shift, 0) + ROWS - 1) // ROWS * ROWS
    if rules.window is not None:
        mixed = tl.maximum(start + rules.window - shift, 0) // ROWS * ROWS
    # The last keys' block reaches beyond the end: it is mixed for every query.
    opens = tl.where(start + KEYS > end, all_rows, tl.minimum(tl.maximum(opens, lo), all_rows))
    return lo, opens, tl.maximum(tl.minimum(mixed, all_rows), opens), hi


@jit
def visible(rules, batch, head, row, at, key, own, end, T, S, CAUSAL: constexpr):
    """Whether the query `row` at position `at`, of document `own`, may attend `key`; all broadcast to one tile."""
    seen = (key < end) & (row < T)
    if CAUSAL:
        seen = seen & (key <= at)
    if rules.window is not None:
        seen = seen & (key > at - rules.window)
    if rules.documents is not None:
        seen = seen & (_document_ids(rules, batch, key, key < S) == own) & (own >= 0)
    if rules.shown is not None:
        seen = seen & (_entries(rules.shown, rules, batch, head, row, key, T, S) != 0)
    if rules.bias is not None:
        # A NaN stays visible: it belongs in the result.
        seen = seen & (_entries(rules.bias, rules, batch, head, row, key, T, S) != NOTHING)
    return seen


@jit
def logits(left, right, seen, rules, batch, head, row, at, key, T, S, FACTOR, PLAIN: constexpr, MIXED: constexpr):
    """left right^T with biases and mask: queries by keys or keys by queries; row, at and key broadcast to it.

    PLAIN (no bias, a positive scale): the raw products, which FACTOR makes powers of two. Otherwise powers of two.
    """
    t = product(left, tl.trans(right))
    if not PLAIN:
        t = t * FACTOR
        if rules.bias is not None:
            t += _entries(rules.bias, rules, batch, head, row, key, T, S).to(tl.float32) * LOG2E
        if rules.alibi is not None:
            t -= tl.load(rules.alibi + head) * LOG2E * tl.abs(key - at).to(tl.float32)
    if MIXED:
        t = tl.where(seen, t, NOTHING)
    return t


@jit
def _entries(mask, rules, batch, head, row, key, T, S):
    place = mask + tl.cast(batch, tl.int64) * rules.mask_batch + tl.cast(head, tl.int64) * rules.mask_head
    place = place + tl.cast(row, tl.int64) * rules.mask_query + tl.cast(key, tl.int64) * rules.mask_key
    return tl.load(place, mask=(row < T) & (key < S), other=0)


@jit
def _document_ids(rules, batch, at, known):
    """Ids at positions `at`, -1 where these are not `known` to be positions."""
    place = rules.documents + tl.cast(batch, tl.int64) * rules.document_batch + at * rules.document_key
    return tl.load(place, mask=known, other=-1)
