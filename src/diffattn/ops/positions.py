"""How attention learns of positions: rotary (interleaved; scaled, with xPos's decay) and ALiBi's slopes."""

import math
from typing import Any

import torch
from torch import Tensor

from diffattn.ops.call import transformed
from diffattn.ops.cpu import pointwise as kernel

Tables = tuple[Tensor, Tensor]
XPOS_SCALE = 512
"""Distance over which the first pair, which decays most, falls to 0.4 / 1.4; the authors' value."""
XPOS_ROOM = 2.0**20
"""What xPos's factors leave for the product of a query and a key themselves."""


def rotary_tables(
    positions: Tensor,
    rotary_dim: int,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    factor: float = 1.0,
) -> Tables:
    """Cosines and sines of the rotary angles.

    positions [..., T], any integer or float dtype; returns (cos, sin), each [..., T, rotary_dim / 2], of `dtype`.
    Frequencies are base^(-2i / rotary_dim); angles are computed in float64, so that they are right at position 1e6
    too. Positions are divided by `factor` (linear scaling, arXiv 2306.15595). ValueError: rotary_dim odd or not
    positive. Source: arXiv 2104.09864, eq. 34.
    """
    return _tables(positions, base ** -_shares(rotary_dim, positions.device) / factor, dtype)


def yarn_tables(
    positions: Tensor,
    rotary_dim: int,
    factor: float,
    original_context: float,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> Tables:
    """Rotary tables for `factor` times the context of training, by YaRN (arXiv 2309.00071, definitions 2 and 3).

    A pair that turns r times within `original_context` keeps its frequency from r = 32 on, has it divided by `factor`
    up to r = 1, and by linear interpolation in r between. Both tables are multiplied by 0.1 ln(factor) + 1, so that
    the logits of turned channels grow by its square. Public code interpolates over rounded channel numbers instead of
    r. Shapes, dtypes and errors as in `rotary_tables`; ValueError also for a factor below 1.
    """
    if factor < 1:
        raise ValueError(f"factor: got {factor}, needs at least 1: YaRN lengthens the context")
    frequencies = _stretched(base ** -_shares(rotary_dim, positions.device), factor, original_context, fast=32)
    cos, sin = _tables(positions, frequencies, torch.float64)
    temperature = 0.1 * math.log(factor) + 1
    return (cos * temperature).to(dtype), (sin * temperature).to(dtype)


def llama3_tables(
    positions: Tensor,
    rotary_dim: int,
    factor: float,
    original_context: float,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> Tables:
    """Rotary tables for a context beyond `original_context`, as the Llama 3.1 models have them.

    As `yarn_tables`, but frequencies are kept from r = 4 turns on, and the tables are not multiplied by anything.
    Shapes and dtypes as in `rotary_tables`.
    """
    frequencies = base ** -_shares(rotary_dim, positions.device)
    return _tables(positions, _stretched(frequencies, factor, original_context, fast=4), dtype)


def xpos_tables(
    positions: Tensor,
    rotary_dim: int,
    center: float,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    heads: torch.dtype | None = None,
) -> tuple[Tables, Tables]:
    """Rotary tables of the queries and of the keys with xPos's decay (arXiv 2212.10554, algorithm 1).

    Queries at n are also multiplied by zeta^((n - center) / 512), keys by zeta^(-(n - center) / 512), with zeta =
    (2i / rotary_dim + 0.4) / 1.4 for pair i: their product shrinks with the distance. `center` does not change it, but
    keeps the factors near 1; half the context is best. Shapes and dtypes as in `rotary_tables`; heads: the dtype of
    the queries and keys that are turned, None: `dtype`. ValueError: positions so far from `center` (`xpos_reach`) that
    they would overflow in either; positions are not read from a GPU.
    """
    shares = _shares(rotary_dim, positions.device)
    offsets = positions.to(torch.float64) - center
    _check_reach(offsets, center, (dtype, heads or dtype))
    decay = ((shares + 0.4) / 1.4) ** (offsets[..., None] / XPOS_SCALE)
    cos, sin = _tables(positions, base**-shares, torch.float64)
    queries = ((cos * decay).to(dtype), (sin * decay).to(dtype))
    return queries, ((cos / decay).to(dtype), (sin / decay).to(dtype))


def xpos_reach(dtype: torch.dtype) -> int:
    """How far from the center xPos's positions may lie where queries and keys have this dtype.

    Up to there a factor times 2^10 is finite in `dtype`, and the product of any two factors and 2^20 in float32, or
    float64 for float64, in which logits are computed: also that of a query and a later key, which grows with the
    distance and is computed before the mask hides it.
    """
    rate = -math.log(0.4 / 1.4) / XPOS_SCALE
    logits = torch.finfo(torch.promote_types(dtype, torch.float32)).max / XPOS_ROOM
    stored = torch.finfo(dtype).max / math.sqrt(XPOS_ROOM)
    return int(min(math.log(logits) / 2, math.log(stored)) / rate)


def alibi_slopes(heads: int, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """The slopes [H] of ALiBi's bias, minus slope times distance (arXiv 2108.12409, section 3).

    With C the largest power of two up to H: 2^(-8h/C), h = 1..C; any further heads take 2^(-8h/(2C)), h = 1, 3, 5 ...,
    as the authors' code does. ValueError: heads below 1.
    """
    if heads < 1:
        raise ValueError(f"heads: got {heads}, needs at least 1")
    power = 1 << (heads.bit_length() - 1)
    steps = torch.arange(heads, dtype=torch.float64, device=device)
    exponents = torch.where(steps < power, (steps + 1) / power, (steps - power + 0.5) / power)
    return torch.exp2(-8 * exponents).to(dtype)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first R channels of each head, pair (2i, 2i + 1) by angle i; the others stay.

    x [B, H, T, D]; cos, sin [T, R / 2] or [B, T, R / 2] with R <= D. Where cos^2 + sin^2 is not 1, its root scales the
    pair. The product is taken in the wider of float32 and the tables' dtype; the result has x's dtype. ValueError:
    tables of another length, or wider than the head.
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
        # The transpose of a rotation, scaled or not, turns back with the same scale; it is itself differentiable.
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


def _shares(rotary_dim: int, device: torch.device) -> Tensor:
    """2i / rotary_dim of each pair i."""
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"rotary_dim: got {rotary_dim}, needs a positive even number of channels")
    return torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim


def _stretched(frequencies: Tensor, factor: float, original_context: float, fast: float) -> Tensor:
    """Divide by `factor` what turns once or less within the original context, keep what turns `fast` times or more."""
    turns = original_context * frequencies / (2 * math.pi)
    kept = ((turns - 1) / (fast - 1)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor)


def _tables(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> Tables:
    angles = positions.to(torch.float64)[..., None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _check_reach(offsets: Tensor, center: float, dtypes: tuple[torch.dtype, ...]) -> None:
    # Reading values would wait for a GPU, and cannot be compiled or transformed.
    if offsets.device.type != "cpu" or not offsets.numel() or torch.compiler.is_compiling() or transformed():
        return
    dtype = min(dtypes, key=xpos_reach)
    reach, farthest = xpos_reach(dtype), float(offsets.abs().max())
    if farthest > reach:
        raise ValueError(
            f"positions: got one {farthest:g} away from the center {center:g}; xPos overflows in {dtype} beyond "
            f"{reach} positions: shorten the sequence or use a wider dtype"
        )


def _check_tables(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    got = f"cos, sin: got {list(cos.shape)} and {list(sin.shape)} for x {list(x.shape)}"
    shape = cos.shape
    if shape != sin.shape or cos.dim() not in (2, 3) or shape[-2] != x.shape[-2] or 2 * shape[-1] > x.shape[-1]:
        raise ValueError(f"{got}, need both [T, R/2] or [B, T, R/2] with R <= D = {x.shape[-1]}")
    if cos.dim() == 3 and shape[0] not in (1, x.shape[0]):
        raise ValueError(f"{got}, need {x.shape[0]} rows, one table per batch row, or one for all")
