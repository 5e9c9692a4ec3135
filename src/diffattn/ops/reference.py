"""The equation as it is written: the oracle, in any dtype, differentiable any number of times; memory O(T * S).

B batch, T queries, S keys, H output heads, G key/value groups, D query/key width, E value width. Everything is
computed in float32, or in float64 for float64 inputs.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from diffattn.ops.call import Call, Norm
from diffattn.ops.masks import Mask, additive, build_mask

FUSES_NORM = False


def unavailable() -> str | None:
    """It runs everywhere."""
    return None


def refuses(call: Call) -> str | None:
    """It serves every call."""
    return None


def run(call: Call) -> Tensor:
    """A v, or (A1 - lam A2) v, [B, H, T, E], in float32 or float64."""
    q, k = call.queries[0], call.keys[0]
    mask = build_mask(call.given, q.shape[2], k.shape[2], q.device, compute_dtype(q.dtype))
    if call.maps == 1:
        weights = softmax_map(q, k, mask, call.scale, call.sink)
    else:
        first, second = diff_maps(q, k, call.queries[1], call.keys[1], mask, call.scale)
        weights = first - call.lam * second
    out = grouped_product(weights, call.v.to(weights.dtype))
    return out if mask.empty is None else out.masked_fill(mask.empty, 0.0)


def normed(x: Tensor, norm: Norm) -> Tensor:
    """gain * RMSNorm(x), in float32 or float64: what a fused norm must give."""
    x = x.to(compute_dtype(x.dtype))
    factor = norm.gain if norm.weight is None else norm.weight.to(x.dtype) * norm.gain
    if norm.eps is None:
        return x * factor
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * factor


def diff_maps(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, mask: Mask, scale: float) -> tuple[Tensor, Tensor]:
    """A1 and A2, each [B, H, T, S]; rows without a key are left uniform (`mask.empty` names them)."""
    wide1 = k1.to(compute_dtype(k1.dtype))
    wide2 = wide1 if k2 is k1 else k2.to(wide1.dtype)
    return softmax_map(q1, wide1, mask, scale), softmax_map(q2, wide2, mask, scale)


def softmax_map(q: Tensor, k: Tensor, mask: Mask, scale: float, sink: Tensor | None = None) -> Tensor:
    """softmax(scale q k^T + mask) over the keys, [B, H, T, S]; `sink` [H] is one more logit in the denominator."""
    return masked_softmax(products(q, k, scale), mask, sink)


def products(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The logits scale q k^T, [B, H, T, S], before any mask."""
    dtype = compute_dtype(q.dtype)
    return grouped_product(q.to(dtype) * scale, k.to(dtype).mT)


def masked_softmax(logits: Tensor, mask: Mask, sink: Tensor | None = None) -> Tensor:
    """softmax(logits + mask) over the keys, [B, H, T, S], with the `sink` of `softmax_map`."""
    if mask.values is not None:
        logits = logits + additive(mask.values, logits.dtype)
    if sink is None:
        return logits.softmax(-1)
    column = sink.to(logits.dtype)[:, None, None].expand(*logits.shape[:-1], 1)
    return torch.cat((logits, column), -1).softmax(-1)[..., :-1]


def grouped_product(left: Tensor, right: Tensor) -> Tensor:
    """[B, H, T, X] times [B, G, X, Y] -> [B, H, T, Y]: head h with group h // (H / G).

    The heads of a group are rows of one product, so that keys and values are never repeated.
    """
    share = left.shape[1] // right.shape[1]
    if share == 1:
        return left @ right
    rows = left.unflatten(1, (-1, share)).flatten(2, 3)
    return (rows @ right).unflatten(2, (share, -1)).flatten(1, 2)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Float32 for everything narrower; float64 stays."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Within it autocast does not round logits to 16 bits, nor change the dtype of the result.

    Where autocast is off there is nothing to do, which saves a tenth of a small call's time. The meta device, where
    shapes are checked without memory, has no autocast.
    """
    off = device.type == "meta" or not torch.is_autocast_enabled(device.type)
    return nullcontext() if off else torch.autocast(device.type, enabled=False)
