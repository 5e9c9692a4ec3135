"""From checked arguments to an implementation."""

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

from diffattn.ops import blocked, cpu, reference, sdpa, triton
from diffattn.ops.call import Call, Norm, transformed
from diffattn.ops.checks import check_lam, check_operands, check_per_head, check_restrictions, check_scale
from diffattn.ops.masks import Mask, Restrictions, build_mask


class Implementation(Protocol):
    """What a module must have to serve calls; `diffattn.ops.call` says what each does."""

    @property
    def FUSES_NORM(self) -> bool: ...

    def unavailable(self) -> str | None: ...
    def refuses(self, call: Call) -> str | None: ...
    def run(self, call: Call) -> Tensor: ...


IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": reference,
    "sdpa": sdpa,
    "blocked": blocked,
    "cpu": cpu,
    "triton": triton,
}


def diff_attention(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    v: Tensor,
    lam: float | Tensor,
    given: Restrictions,
    scale: float | None,
    norm: Norm | None,
    impl: str,
) -> Tensor:
    """(A1 - lam A2) v and the norm behind it, [B, H, T, E], in the dtype of q1."""
    check_operands({"q1": q1, "q2": q2}, {"k1": k1, "k2": k2}, v)
    check_lam(lam, q1)
    given, scale = _checked(given, q1, k1, scale)
    if isinstance(lam, Tensor):
        lam = lam.to(reference.compute_dtype(q1.dtype))
    return _run(Call((q1, q2), (k1, k2), v, lam, None, given, scale, norm), impl)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    given: Restrictions,
    scale: float | None,
    sink: Tensor | None,
    norm: Norm | None,
    impl: str,
) -> Tensor:
    """A v and the norm behind it, [B, H, T, E], in the dtype of q."""
    check_operands({"q": q}, {"k": k}, v)
    given, scale = _checked(given, q, k, scale)
    if sink is not None:
        check_per_head("sink", sink, q.shape[1], q.device)
    return _run(Call((q,), (k,), v, 0.0, sink, given, scale, norm), impl)


def _run(call: Call, impl: str) -> Tensor:
    dtype = call.queries[0].dtype
    chosen = _choose(call, impl)
    with reference.full_precision(call.queries[0].device):
        if call.norm is None or chosen.FUSES_NORM:
            return chosen.run(call).to(dtype)
        return reference.normed(chosen.run(dataclasses.replace(call, norm=None)), call.norm).to(dtype)


def diff_maps(
    q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, given: Restrictions, scale: float | None
) -> tuple[Tensor, Tensor]:
    """A1 and A2, [B, H, T, S], with rows of zeros where there is nothing to attend."""
    check_operands({"q1": q1, "q2": q2}, {"k1": k1, "k2": k2}, None)
    given, scale = _checked(given, q1, k1, scale)
    mask = _mask(given, q1, k1)
    with reference.full_precision(q1.device):
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
    with reference.full_precision(q.device):
        found = reference.softmax_map(q, k, mask, scale, sink)
    return found if mask.empty is None else found.masked_fill(mask.empty, 0.0)


def taken_by_auto(width: int, value_width: int, maps: int, context: int) -> str:
    """What `auto` takes on this machine's CPU for causal attention in float32 at this context."""
    number = torch.empty(())
    x, v = (number.expand(1, 1, context, size) for size in (width, value_width))
    return _fastest(Call((x,) * maps, (x,) * maps, v, 0.0, None, Restrictions(is_causal=True), 1.0))


def _checked(given: Restrictions, q: Tensor, k: Tensor, scale: float | None) -> tuple[Restrictions, float]:
    check_scale(scale)
    check_restrictions(given, q, k.shape[2])
    if given.window is not None and given.window >= k.shape[2]:
        given = dataclasses.replace(given, window=None)
    return given, q.shape[-1] ** -0.5 if scale is None else float(scale)


def _mask(given: Restrictions, q: Tensor, k: Tensor) -> Mask:
    return build_mask(given, q.shape[2], k.shape[2], q.device, reference.compute_dtype(q.dtype))


def _choose(call: Call, impl: str) -> Implementation:
    if impl == "auto":
        return IMPLEMENTATIONS[_fastest(call)]
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl: got {impl!r}, needs 'auto' or one of {', '.join(map(repr, IMPLEMENTATIONS))}")
    chosen = IMPLEMENTATIONS[impl]
    reason = chosen.unavailable() or chosen.refuses(call)
    if reason is not None:
        raise ValueError(f"impl: {impl!r} cannot serve this call: {reason}")
    return chosen


def _fastest(call: Call) -> str:
    """By benchmarks/attention.json, of a Zen 3 (AVX2, one thread, float32).

    On a CPU the fused kernel was the fastest in 51 of 52 cases, of training and of decoding, and level with torch's
    attention in the other (one map of 32 x 32) and for one map of 4096 x 4096. For what it does not serve: the plain
    formula up to 96 x 96 maps and for up to 16 queries; torch's attention beyond, except that two maps of 512 x 512
    and more are faster in blocks, and masks only there need no T x S memory. No accelerator has been measured, so
    there it is torch's.
    """
    q, mask = call.queries[0], call.given.attn_mask
    if transformed():
        return "reference"
    if q.device.type != "cpu":
        return "sdpa"
    if cpu.unavailable() is None and cpu.refuses(call) is None:
        return "cpu"
    pairs = q.shape[2] * call.keys[0].shape[2]
    if q.shape[2] <= 16 or (call.v.shape[-1] > q.shape[-1] and pairs <= 96 * 96):
        return "reference"
    long = call.maps == 2 and pairs >= 512 * 512
    return "blocked" if long and not (mask is not None and mask.requires_grad) else "sdpa"
