"""torch.func and forward-mode differentiation: `auto` takes what has rules for them, others say that they have none."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close

from diffattn.ops import diff_attention, implementations
from diffattn.ops.pointwise import rms_norm, swiglu


def operands() -> tuple[Tensor, ...]:
    q1, q2 = torch.randn(2, 2, 4, 33, 16)
    k1, k2 = torch.randn(2, 2, 2, 33, 16)
    return q1, k1, q2, k2, torch.randn(2, 2, 33, 32)


def read(q1: Tensor, *others: Tensor, impl: str = "auto") -> Tensor:
    return diff_attention(q1, *others, 0.5, is_causal=True, impl=impl)


def test_a_directional_derivative_is_the_formulas() -> None:
    q1, *others = operands()
    direction = torch.randn_like(q1)
    found = torch.func.jvp(lambda q: read(q, *others), (q1,), (direction,))[1]
    wanted = torch.func.jvp(lambda q: read(q, *others, impl="reference"), (q1,), (direction,))[1]
    assert wanted.abs().max() > 0
    assert_close(found, wanted)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(read(forward_ad.make_dual(q1, direction), *others))
    assert_close(dual.tangent, wanted)


def test_functional_gradients_are_those_of_backward() -> None:
    q1, *others = operands()
    found = torch.func.grad(lambda q: read(q, *others).square().sum())(q1)
    leaf = q1.clone().requires_grad_()
    read(leaf, *others).square().sum().backward()
    assert leaf.grad is not None
    assert_close(found, leaf.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", [name for name in ("blocked", "cpu") if implementations()[name] is None])
def test_fused_implementations_say_that_they_have_no_rules(impl: str) -> None:
    q1, *others = operands()
    with pytest.raises(ValueError, match="forward-mode differentiation need"):
        torch.func.jvp(lambda q: read(q, *others, impl=impl), (q1,), (q1,))


@pytest.mark.parametrize("operation", [swiglu, lambda x, y: rms_norm(x, y[0], 1e-5)])
def test_elementwise_passes_differentiate_forward(operation: object) -> None:
    assert callable(operation)
    x, y = torch.randn(2, 5, 64)
    wanted = torch.func.jvp(lambda x: operation(x, y), (x,), (x,))[1]
    with forward_ad.dual_level():
        assert_close(forward_ad.unpack_dual(operation(forward_ad.make_dual(x, x), y)).tangent, wanted)
