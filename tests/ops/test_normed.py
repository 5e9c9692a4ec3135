"""The operators with the per-head norm and gain behind them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from diffattn.ops import attention, diff_attention
from diffattn.ops.normed import normed_attention, normed_diff_attention
from support.implementations import RUNNING, home, with_dtypes

every_impl = pytest.mark.parametrize("impl", ["auto", *RUNNING])


def operands(
    dtype: torch.dtype = torch.float64, width: int = 4, value: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (2, 4, 5, width), (2, 2, 5, width), (2, 2, 5, value or 2 * width)
    q1, k1, q2, k2, v = (torch.randn(shape, dtype=torch.float64).to(dtype) for shape in (q, k, q, k, v))
    return q1, k1, q2, k2, v


def norm(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


@every_impl
@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_it_is_the_operator_normed_per_head_and_token(eps: float, impl: str) -> None:
    at = home(impl)
    given, weight = operands(at.dtype, at.width), torch.rand(2 * at.width, dtype=at.dtype)
    options: dict[str, Any] = {"is_causal": True, "impl": impl}
    plain = diff_attention(*given, 0.6, **options)
    assert_close(
        normed_diff_attention(*given, 0.6, weight, eps, 0.8, **options), 0.8 * weight * norm(plain, eps), **at.close
    )
    assert_close(normed_diff_attention(*given, 0.6, None, eps, 1.0, **options), norm(plain, eps), **at.close)
    assert_close(normed_diff_attention(*given, 0.6, None, None, 0.8, **options), 0.8 * plain, **at.close)
    q, k, _, _, v = given
    sink = torch.randn(4, dtype=at.dtype)
    one = attention(q, k, v, sink=sink, **options)
    assert_close(
        normed_attention(q, k, v, weight, eps, 0.7, sink=sink, **options), 0.7 * weight * norm(one, eps), **at.close
    )


@every_impl
def test_every_restriction_reaches_the_operator(impl: str) -> None:
    given = operands(home(impl).dtype, home(impl).width)
    options: dict[str, Any] = {
        "attn_mask": torch.rand(5, 5) < 0.8,
        "is_causal": True,
        "scale": 0.3,
        "window": 3,
        "documents": torch.tensor([[0, 0, 0, 1, 1], [-1, 0, 0, 0, 0]]),
        "key_lengths": torch.tensor([5, 4]),
        "alibi": torch.rand(4),
        "impl": impl,
    }
    assert_close(normed_diff_attention(*given, 0.6, None, None, 1.0, **options), diff_attention(*given, 0.6, **options))
    q, k, _, _, v = given
    assert_close(normed_attention(q, k, v, None, None, 1.0, **options), attention(q, k, v, **options))


@with_dtypes(torch.float64, torch.float32, torch.bfloat16, torch.float16, width=16)
def test_a_row_of_zeros_stays_finite_forward_and_backward(dtype: torch.dtype, impl: str) -> None:
    """At lam = 1 the first causal row is exactly 0, and the norm divides by the root of eps alone."""
    leaves = [x.requires_grad_() for x in operands(dtype, 16)]
    lam, weight = torch.tensor(1.0, requires_grad=True), torch.ones(32, requires_grad=True)
    out = normed_diff_attention(*leaves, lam, weight, 1e-5, 0.2, is_causal=True, impl=impl)
    assert not out[:, :, 0].any() and out.dtype == dtype
    gradients = torch.autograd.grad(out.float().cos().sum() + out.float().sum(), [*leaves, lam, weight])
    assert all(x.isfinite().all() for x in gradients)
    assert gradients[4][:, :, 0].any(), "the value of the first token gets a gradient through later rows"


@every_impl
def test_a_padded_row_stays_zero(impl: str) -> None:
    leaves = [x.requires_grad_() for x in operands(home(impl).dtype, home(impl).width)]
    documents = torch.tensor([[-1, -1, 0, 0, 0]]).expand(2, 5)
    out = normed_diff_attention(*leaves, 0.5, None, 1e-5, 1.0, is_causal=True, documents=documents, impl=impl)
    out.exp().sum().backward()
    assert not out[:, :, :2].any()
    assert all(x.grad is not None and x.grad.isfinite().all() and not x.grad[:, :, :2].any() for x in leaves)


def test_gradients() -> None:
    leaves = [x.requires_grad_() for x in operands()]
    lam, weight = torch.rand(4, 1, 1, dtype=torch.float64), torch.rand(8, dtype=torch.float64)
    leaves += [lam.requires_grad_(), weight.requires_grad_()]
    assert gradcheck(lambda *x: normed_diff_attention(*x, 1e-5, 0.8, is_causal=True, impl="sdpa"), leaves)


def test_the_result_is_rounded_once_behind_the_norm() -> None:
    """Rounding the operator's result to bfloat16 as well would double the largest error."""
    given = operands(torch.bfloat16, value=256)
    out = normed_diff_attention(*given, 0.5, None, 1e-5, 0.7, is_causal=True, impl="reference")
    exact = normed_diff_attention(*(x.double() for x in given), 0.5, None, 1e-5, 0.7, is_causal=True)
    # Half a step of bfloat16, and the arithmetic of float32.
    assert ((out.double() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-5).all()


@pytest.mark.parametrize("eps", [0.0, -1e-5])
def test_eps_must_be_positive(eps: float) -> None:
    with pytest.raises(ValueError, match=f"eps: got {eps}, needs a positive number"):
        normed_diff_attention(*operands(), 0.5, None, eps, 1.0)


@pytest.mark.parametrize("weight", [torch.ones(4), torch.ones(1, 8), torch.ones(8, dtype=torch.int64)])
def test_the_weight_has_one_number_per_value_channel(weight: Tensor) -> None:
    with pytest.raises(ValueError, match=r"weight: got .*, needs floating \[8\]"):
        normed_diff_attention(*operands(), 0.5, weight, 1e-5, 1.0)


def test_a_weight_without_a_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="weight: got a tensor with eps=None"):
        normed_diff_attention(*operands(), 0.5, torch.ones(8), None, 1.0)
