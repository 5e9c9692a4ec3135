"""What torch sees of the kernels: refusals, second derivatives, layout, tracing."""

import pytest
import torch
from torch import Tensor

from diffattn.ops import diff_attention, implementations


def operands(dtype: torch.dtype = torch.float32, width: int = 16, tokens: int = 17) -> list[Tensor]:
    return [torch.randn(1, 1, tokens, width).to(dtype) for _ in range(5)]


def test_the_interpreter_makes_it_available() -> None:
    assert implementations()["triton"] is None


@pytest.mark.parametrize(
    ("dtype", "width", "reason"),
    [
        (torch.float64, 16, "it computes in float32"),
        (torch.bfloat16, 16, "Triton's interpreter multiplies bfloat16 wrongly"),
        (torch.float32, 264, "the widths are 264"),
    ],
)
def test_what_it_cannot_serve_is_refused_with_the_reason(dtype: torch.dtype, width: int, reason: str) -> None:
    with pytest.raises(ValueError, match=f"'triton' cannot serve this call: {reason}"):
        diff_attention(*operands(dtype, width, 2), 0.5, impl="triton")


@pytest.mark.parametrize("name", ["attn_mask", "alibi"])
def test_a_mask_or_slope_that_wants_a_gradient_is_refused(name: str) -> None:
    given = torch.zeros(17, 17) if name == "attn_mask" else torch.zeros(1)
    with pytest.raises(ValueError, match=f"{name} requires a gradient"):
        diff_attention(*operands(), 0.5, **{name: given.requires_grad_()}, impl="triton")


def test_a_second_derivative_is_an_error_that_says_who_can() -> None:
    leaves = [x.requires_grad_() for x in operands(tokens=3)]
    out = diff_attention(*leaves, 0.5, impl="triton")
    first = torch.autograd.grad(out.sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="impl='reference' or impl='sdpa' can be differentiated twice"):
        first[0].sum().backward()


def test_the_heads_of_a_position_lie_together() -> None:
    """So that the output projection's reshape is a view."""
    q, k, v = torch.randn(1, 2, 3, 16), torch.randn(1, 1, 3, 16), torch.randn(1, 1, 3, 32)
    out = diff_attention(q, k, q, k, v, 0.5, impl="triton")
    assert out.transpose(1, 2).is_contiguous()
