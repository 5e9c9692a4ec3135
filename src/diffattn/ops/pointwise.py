"""What stands between the matrix products of a decoder: RMSNorm and SwiGLU.

On a CPU with the compiled kernel each is one pass forward and one backward; elsewhere, and under torch.compile, which
fuses them itself, they are torch's own functions. Second derivatives are those of torch's functions everywhere.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffattn.ops.cpu import pointwise as kernel


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean of x^2 over the last axis + eps) * weight.

    x [..., W], weight [W]; statistics are float32 (float64 for float64), the result has x's shape and dtype.
    Source: arXiv 1910.07467.
    """
    if kernel.serves(x, weight) and weight.shape == x.shape[-1:]:
        return _Norm.apply(x.contiguous(), weight, eps)
    return _norm(x, weight, eps)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, elementwise, for tensors of one shape; the result has their dtype. Source: arXiv 2002.05202."""
    if kernel.serves(gate, up) and gate.shape == up.shape:
        return _SwiGLU.apply(gate.contiguous(), up.contiguous())
    return _swiglu(gate, up)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, inverse_root = kernel.norm_forward(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse_root)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, inverse_root = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_again(lambda x, weight: _norm(x, weight, ctx.eps), (x, weight), grads[0]), None
        return *kernel.norm_backward(x, weight, inverse_root, grads[0].contiguous()), None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return kernel.swiglu_forward(gate, up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            return _again(_swiglu, ctx.saved_tensors, grads[0])
        return kernel.swiglu_backward(*ctx.saved_tensors, grads[0].contiguous())


def _again(plain: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients by the plain form, which can be differentiated once more (create_graph=True)."""
    # Of names of their own: one tensor may be given twice, and its hooks belong to the outer pass.
    inputs = tuple(x.view_as(x) for x in inputs)
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(plain(*inputs), wanted, grad, create_graph=True))
    return tuple(next(found) if x.requires_grad else None for x in inputs)
