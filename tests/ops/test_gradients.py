"""First and second derivatives, against differences; lam over every axis that it broadcasts along."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from diffattn.ops import attention, diff_attention
from support.implementations import serving

every_impl = pytest.mark.parametrize("impl", serving(torch.float64, 2))
TWICE = ["reference", "sdpa"]
"""The fused ones refuse second derivatives, and masks that require grad."""
twice_differentiable = pytest.mark.parametrize("impl", TWICE)
RESTRICTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"is_causal": True},
    "chunk": {"is_causal": True, "key_lengths": torch.tensor([3])},
    "padding": {"documents": torch.tensor([[-1, 0, 0, 1]])},
    "alibi": {"is_causal": True, "alibi": torch.tensor([0.5, 0.1], dtype=torch.float64), "window": 2},
}


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def operands(value_width: int, tokens: int = 3) -> list[Tensor]:
    q, k = (1, 2, tokens, 2), (1, 1, 4, 2)
    return [leaf(*q), leaf(*k), leaf(*q), leaf(*k), leaf(1, 1, 4, value_width), leaf(2, 1, 1)]


@every_impl
@pytest.mark.parametrize("name", RESTRICTIONS)
@pytest.mark.parametrize("value_width", [2, 4])
def test_first_and_second_derivatives(value_width: int, name: str, impl: str) -> None:
    def run(*leaves: Tensor) -> Tensor:
        return diff_attention(*leaves, **RESTRICTIONS[name], impl=impl)

    assert gradcheck(run, operands(value_width))
    assert impl not in TWICE or gradgradcheck(run, operands(value_width))


@twice_differentiable
def test_second_derivatives_of_the_square_causal_call_and_of_one_query(impl: str) -> None:
    def run(*leaves: Tensor) -> Tensor:
        return diff_attention(*leaves, is_causal=True, impl=impl)

    assert gradgradcheck(run, operands(4, tokens=4))
    assert gradgradcheck(run, operands(4, tokens=1))


@every_impl
@pytest.mark.parametrize("name", ["nothing", "causal", "padding"])
def test_derivatives_with_a_sink(name: str, impl: str) -> None:
    def run(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
        return attention(q, k, v, **RESTRICTIONS[name], sink=sink, impl=impl)

    leaves = (leaf(1, 2, 4, 2), leaf(1, 1, 4, 2), leaf(1, 1, 4, 3), leaf(2))
    assert gradcheck(run, leaves)
    assert impl not in TWICE or gradgradcheck(run, leaves)


@twice_differentiable
@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (1, 4), (3, 1), (1, 2, 1, 1)])
def test_derivatives_of_a_mask(shape: tuple[int, ...], impl: str) -> None:
    q1, q2, k1, k2 = torch.randn(4, 2, 2, 4, 2, dtype=torch.float64)
    v = torch.randn(2, 2, 4, 4, dtype=torch.float64)

    def run(mask: Tensor) -> Tensor:
        return diff_attention(q1[:, :, :3], k1, q2[:, :, :3], k2, v, 0.4, attn_mask=mask, impl=impl)

    assert gradcheck(run, (leaf(*shape),))
    assert gradgradcheck(run, (leaf(*shape),))


@twice_differentiable
def test_a_masked_entry_of_a_mask_has_no_gradient(impl: str) -> None:
    mask = torch.zeros(3, 3, dtype=torch.float64)
    mask[0], mask[1, 2] = -torch.inf, -torch.inf
    q, k, v = (torch.randn(1, 1, 3, 4, dtype=torch.float64) for _ in range(3))
    attention(q, k, v, attn_mask=mask.requires_grad_(), impl=impl).exp().sum().backward()
    assert mask.grad is not None and not mask.grad[0].any() and mask.grad[1, 2] == 0
    assert mask.grad[1, :2].all() and mask.grad[2].all()


@every_impl
@pytest.mark.parametrize("shape", [(), (1,), (2, 1, 1), (3, 1, 1, 1), (5, 1), (1, 2, 1, 1), (3, 1, 5, 1), (3, 2, 5, 1)])
def test_the_gradient_of_lam_is_summed_over_its_broadcast_axes(shape: tuple[int, ...], impl: str) -> None:
    q1, q2, k1, k2 = torch.randn(4, 3, 2, 5, 4, dtype=torch.float64)
    v, cotangent = torch.randn(2, 3, 2, 5, 8, dtype=torch.float64)
    lam = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    full = lam.detach().expand(3, 2, 5, 1).clone().requires_grad_()
    for x in (lam, full):
        (diff_attention(q1, k1, q2, k2, v, x, is_causal=True, impl=impl) * cotangent).sum().backward()
    assert_close(lam.grad, full.grad.sum_to_size(shape), rtol=1e-12, atol=1e-12)


@every_impl
def test_a_graph_kept_is_walked_twice(impl: str) -> None:
    leaves = operands(4)
    out = diff_attention(*leaves, is_causal=True, impl=impl).sum()
    once = torch.autograd.grad(out, leaves, retain_graph=True)
    assert_close(torch.autograd.grad(out, leaves), once)


@every_impl
def test_frozen_operands_get_no_gradient_and_change_none(impl: str) -> None:
    leaves = operands(4)
    everything = torch.autograd.grad(diff_attention(*leaves, impl=impl).sum(), leaves)
    frozen = [x.detach() for x in leaves[:4]]
    some = torch.autograd.grad(diff_attention(*frozen, *leaves[4:], impl=impl).sum(), leaves[4:], create_graph=True)
    assert_close(tuple(x.detach() for x in some), everything[4:])
