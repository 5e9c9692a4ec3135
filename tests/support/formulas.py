"""The formulas of the papers, head by head, as plainly as they can be written."""

import torch
from torch import Tensor


def rotated(x: Tensor) -> Tensor:
    """Turn one head's channels [T, D] in interleaved pairs by position * 10000^(-2i/D)."""
    tokens, dim = x.shape
    angle = torch.arange(tokens)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    turned = torch.view_as_complex(x.reshape(tokens, dim // 2, 2)) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).reshape(tokens, dim)


def causal_map(q: Tensor, k: Tensor, factor: float = 1.0) -> Tensor:
    """softmax(factor * q k^T / sqrt(D)) of one head, q and k [T, D], causal."""
    logits = factor * rotated(q) @ rotated(k).T / q.shape[-1] ** 0.5
    return logits.masked_fill(torch.ones_like(logits).triu(1).bool(), -torch.inf).softmax(-1)


def rms_norm(x: Tensor, weight: Tensor | float = 1.0, eps: float = 1e-5) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def head(projected: Tensor, number: int, dim: int) -> Tensor:
    """Channels of one head of a projection [T, N * dim]."""
    return projected[:, number * dim : (number + 1) * dim]
