"""Rotary positions, interleaved."""

import torch
from torch import Tensor


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
    the table's dtype; the result has x's dtype. ValueError: tables of another length, or wider than the head.
    """
    if cos.shape != sin.shape or cos.dim() not in (2, 3):
        raise ValueError(
            f"cos, sin: got shapes {list(cos.shape)} and {list(sin.shape)}, need both [T, R/2] or [B, T, R/2]"
        )
    rotary_dim = 2 * cos.shape[-1]
    if rotary_dim > x.shape[-1] or cos.shape[-2] != x.shape[-2] or (cos.dim() == 3 and cos.shape[0] != x.shape[0]):
        raise ValueError(
            f"cos, sin: got {list(cos.shape)} for x {list(x.shape)}, need [T, R/2] or [B, T, R/2] with R <= D"
        )
    if cos.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    turned, kept = x[..., :rotary_dim], x[..., rotary_dim:]
    even, odd = turned[..., 0::2], turned[..., 1::2]
    rotated = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)
    return rotated if not kept.shape[-1] else torch.cat((rotated, kept), dim=-1)
