"""From checked arguments to an implementation. Results here keep float32 (float64) where the implementation has it."""

import dataclasses
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from diffattn.ops import reference, sdpa
from diffattn.ops.checks import check_lam, check_operands, check_per_head, check_restrictions, check_scale
from diffattn.ops.masks import Mask, Restrictions, build_mask

IMPLEMENTATIONS = ("reference", "sdpa")


def diff_attention_wide(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    v: Tensor,
    lam: float | Tensor,
    given: Restrictions,
    scale: float | None,
    impl: str,
) -> Tensor:
    """(A1 - lam A2) v, [B, H, T, E], before it is rounded to the dtype of q1."""
    check_operands({"q1": q1, "q2": q2}, {"k1": k1, "k2": k2}, v)
    check_lam(lam, q1)
    given, scale = _checked(given, q1, k1, scale)
    chosen = _choose(impl, q1, k1, v)
    if isinstance(lam, Tensor):
        lam = lam.to(reference.compute_dtype(q1.dtype))
    square = _square_causal(given, q1, k1) and chosen == "sdpa"
    mask = Mask(None, None) if square else _mask(given, q1, k1)
    with _full_precision(q1):
        if chosen == "sdpa":
            return sdpa.diff_attention(q1, k1, q2, k2, v, lam, mask, scale, square)
        return reference.diff_attention(q1, k1, q2, k2, v, lam, mask, scale)


def attention_wide(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    given: Restrictions,
    scale: float | None,
    sink: Tensor | None,
    impl: str,
) -> Tensor:
    """A v, [B, H, T, E], before it is rounded to the dtype of q."""
    check_operands({"q": q}, {"k": k}, v)
    given, scale = _checked(given, q, k, scale)
    if sink is not None:
        check_per_head("sink", sink, q.shape[1], q.device)
    chosen = _choose(impl, q, k, v)
    square = _square_causal(given, q, k) and chosen == "sdpa"
    mask = Mask(None, None) if square else _mask(given, q, k)
    with _full_precision(q):
        if chosen == "sdpa":
            return sdpa.attention(q, k, v, mask, scale, square, sink)
        return reference.attention(q, k, v, mask, scale, sink)


def diff_maps(
    q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, given: Restrictions, scale: float | None
) -> tuple[Tensor, Tensor]:
    """A1 and A2, [B, H, T, S], with rows of zeros where there is nothing to attend."""
    check_operands({"q1": q1, "q2": q2}, {"k1": k1, "k2": k2}, None)
    given, scale = _checked(given, q1, k1, scale)
    mask = _mask(given, q1, k1)
    with _full_precision(q1):
        first, second = reference.diff_maps(q1, k1, q2, k2, mask, scale)
    if mask.empty is None:
        return first, second
    return first.masked_fill(mask.empty, 0.0), second.masked_fill(mask.empty, 0.0)


def softmax_map(q: Tensor, k: Tensor, given: Restrictions, scale: float | None, sink: Tensor | None) -> Tensor:
    """A, [B, H, T, S], with rows of zeros where there is nothing to attend."""
    check_operands({"q": q}, {"k": k}, None)
    given, scale = _checked(given, q, k, scale)
    if sink is not None:
        check_per_head("sink", sink, q.shape[1], q.device)
    mask = _mask(given, q, k)
    with _full_precision(q):
        found = reference.softmax_map(q, k, mask, scale, sink)
    return found if mask.empty is None else found.masked_fill(mask.empty, 0.0)


def _checked(given: Restrictions, q: Tensor, k: Tensor, scale: float | None) -> tuple[Restrictions, float]:
    check_scale(scale)
    check_restrictions(given, q, k.shape[2])
    if given.window is not None and given.window >= k.shape[2]:
        given = dataclasses.replace(given, window=None)
    return given, q.shape[-1] ** -0.5 if scale is None else float(scale)


def _square_causal(given: Restrictions, q: Tensor, k: Tensor) -> bool:
    """The plain causal rule over as many queries as keys: kernels have it built in and need no mask."""
    return given.only_causal() and q.shape[2] == k.shape[2]


def _mask(given: Restrictions, q: Tensor, k: Tensor) -> Mask:
    return build_mask(given, q.shape[2], k.shape[2], q.device, reference.compute_dtype(q.dtype))


def _full_precision(q: Tensor) -> AbstractContextManager[object]:
    """Autocast would round logits to 16 bits, and change the dtype of the result."""
    return torch.autocast(q.device.type, enabled=False)


def _choose(impl: str, q: Tensor, k: Tensor, v: Tensor) -> str:
    if impl == "auto":
        return _fastest(q, k, v)
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl: got {impl!r}, needs 'auto' or one of {', '.join(map(repr, IMPLEMENTATIONS))}")
    return impl


def _fastest(q: Tensor, k: Tensor, v: Tensor) -> str:
    """By benchmarks/sdpa_plans.py on one core of a Zen 3 in float32; accelerators are not measured.

    A CPU's fused kernel is slow where its blocks are not filled. Where V is wider than Q the plain formula takes 0.6
    of its time at T = 32, 0.7 to 0.8 from 64 to 96 (forward and backward), and loses from 128 on; where it is not, the
    two are even at 64. For up to 16 queries on a longer cache the formula takes 0.4 to 0.7.
    """
    queries, keys = q.shape[2], k.shape[2]
    few = queries <= 16 or (v.shape[-1] > q.shape[-1] and queries * keys <= 96 * 96)
    return "reference" if few and q.device.type == "cpu" else "sdpa"
