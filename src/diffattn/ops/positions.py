"""Rotary positions, interleaved."""

from typing import Any

import torch
from torch import Tensor

from diffattn.ops.cpu import pointwise as kernel


def rotary_tables(
    positions: Tensor, rotary_dim: int, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles.

    positions [..., T], any integer or float dtype; returns (cos, sin), each [..., T, rotary_dim / 2], of `dtype`.
    Frequencies are base^(-2i / rotary_dim); angles are computed in float64, so that they are right at position 1e6
    too. ValueError: rotary_dim odd or not positive. Source: arXiv 2104.09864, eq. 34.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"rotary_dim: got {rotary_dim}, needs a positive even number of channels")
    pairs = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions.to(torch.float64)[..., None] * base ** (-pairs / rotary_dim)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first R channels of each head, pair (2i, 2i + 1) by angle i; the others stay.

    x [B, H, T, D]; cos, sin [T, R / 2] or [B, T, R / 2] with R <= D. The product is taken in the wider of float32 and
    the tables' dtype; the result has x's dtype. ValueError: tables of another length, or wider than the head.
    """
    _check_tables(x, cos, sin)
    tables = kernel.serves(cos, sin) and cos.dtype == torch.float32 and not (cos.requires_grad or sin.requires_grad)
    if tables and kernel.serves(x):
        return _Rotary.apply(x, cos.contiguous(), sin.contiguous(), False)
    return _rotary(x, cos, sin)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, backwards: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.backwards = backwards
        return kernel.rotary(x if x.stride(-1) == 1 else x.contiguous(), cos, sin, backwards)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # The transpose of a rotation turns back; it is itself differentiable.
        return _Rotary.apply(grads[0], *ctx.saved_tensors, not ctx.backwards), None, None, None


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotary_dim = 2 * cos.shape[-1]
    if cos.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    turned, kept = x[..., :rotary_dim], x[..., rotary_dim:]
    rotated = _rotated(turned.to(torch.promote_types(x.dtype, cos.dtype)), cos, sin).to(x.dtype)
    return rotated if not kept.shape[-1] else torch.cat((rotated, kept), dim=-1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    if torch.compiler.is_compiling() or x.dtype not in (torch.float32, torch.float64):
        # The compiler fuses this form, and has no complex numbers.
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    # One complex product takes a third of the time of the form above (float32, one core of a Zen 3, forward and
    # backward: 0.85 against 2.57 ms at [8, 6, 256, 16]). It needs pairs that lie together at even offsets.
    if x.stride(-1) != 1 or x.storage_offset() % 2 or any(stride % 2 for stride in x.stride()[:-1]):
        x = x.contiguous()
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)


def _check_tables(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    got = f"cos, sin: got {list(cos.shape)} and {list(sin.shape)} for x {list(x.shape)}"
    shape = cos.shape
    if shape != sin.shape or cos.dim() not in (2, 3) or shape[-2] != x.shape[-2] or 2 * shape[-1] > x.shape[-1]:
        raise ValueError(f"{got}, need both [T, R/2] or [B, T, R/2] with R <= D = {x.shape[-1]}")
    if cos.dim() == 3 and shape[0] not in (1, x.shape[0]):
        raise ValueError(f"{got}, need {x.shape[0]} rows, one table per batch row, or one for all")
