"""The fused CPU kernel's result without gradients, against the formula in float64."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from diffattn.ops import attention, diff_attention
from support.cpu_kernel import KernelCase, assert_near, kernel_cases, needs_kernel, poisoned_memory, threads

pytestmark = needs_kernel
few = settings(max_examples=120, deadline=None, derandomize=True)


@few
@given(kernel_cases())
def test_differential_attention_is_the_formula(case: KernelCase) -> None:
    assert_near(case, {"out": case.result("cpu", torch.float32)})


@few
@given(kernel_cases(maps=1))
def test_ordinary_attention_with_and_without_sink_is_the_formula(case: KernelCase) -> None:
    assert_near(case, {"out": case.result("cpu", torch.float32)})


@few
@given(kernel_cases(dtype=torch.bfloat16))
def test_differential_attention_in_bfloat16_is_the_formula(case: KernelCase) -> None:
    assert_near(case, {"out": case.result("cpu", torch.bfloat16)})


@few
@given(kernel_cases(dtype=torch.bfloat16, maps=1))
def test_ordinary_attention_in_bfloat16_is_the_formula(case: KernelCase) -> None:
    assert_near(case, {"out": case.result("cpu", torch.bfloat16)})


def operands(tokens: int = 150, keys: int = 150, width: int = 32, value: int = 64) -> list[Tensor]:
    """More than one block of queries and of keys; two groups of two heads."""
    shapes = [(4, tokens, width), (2, keys, width), (4, tokens, width), (2, keys, width), (2, keys, value)]
    return [torch.randn(1, *shape) for shape in shapes]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_key_that_is_not_finite_shows_where_it_may_be_attended_and_nowhere_else(value: float) -> None:
    """Key 70 lies inside a block: rows before it are untouched to the last bit."""
    q1, k1, q2, k2, v = operands()
    # Queries of the value's sign make its logit plus infinity, which has no softmax.
    q1 = q1.abs() * (-1 if value < 0 else 1)
    before = diff_attention(q1, k1, q2, k2, v, 0.5, is_causal=True, impl="cpu")
    k1[:, :, 70] = value
    out = diff_attention(q1, k1, q2, k2, v, 0.5, is_causal=True, impl="cpu")
    assert torch.equal(out[:, :, :70], before[:, :, :70])
    assert out[:, :, 70:].isnan().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_shows_where_it_may_be_attended(value: float) -> None:
    given = operands()
    given[4][:, :, 70] = value
    out = diff_attention(*given, 0.5, is_causal=True, impl="cpu")
    assert out[:, :, :64].isfinite().all() and not out[:, :, 70:].isfinite().any()


HIDDEN: dict[str, dict[str, Any]] = {
    "behind the key length": {"key_lengths": torch.tensor([100])},
    "another document": {"documents": (torch.arange(150) >= 100).long()[None] * 3},
    "padding": {"documents": torch.where(torch.arange(150) >= 100, -5, 2)[None]},
    "a mask": {"attn_mask": torch.arange(150) < 100},
    "a mask of floats": {"attn_mask": torch.zeros(150).masked_fill(torch.arange(150) >= 100, -torch.inf)},
    "the future": {"attn_mask": torch.ones(1, dtype=torch.bool), "is_causal": True},
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_key_of_nan_that_no_row_may_attend_changes_no_bit(name: str) -> None:
    """Values are multiplied by a weight of exactly 0, so there it is left open what a NaN does."""
    q1, k1, q2, k2, v = operands()
    rows = slice(0, 100)
    before = diff_attention(q1, k1, q2, k2, v, 0.5, **HIDDEN[name], impl="cpu")[:, :, rows]
    for k in (k1, k2):
        k[:, :, 100:] = torch.nan
    assert torch.equal(diff_attention(q1, k1, q2, k2, v, 0.5, **HIDDEN[name], impl="cpu")[:, :, rows], before)


@pytest.mark.parametrize("lam", [1.0, torch.ones(4, 150, 1)])
def test_at_lam_1_the_first_causal_row_is_exactly_0(lam: float | Tensor) -> None:
    out = diff_attention(*operands(), lam, is_causal=True, impl="cpu")
    assert not out[:, :, 0].any() and out[:, :, 1:].any(-1).all()


def test_rows_with_nothing_to_attend_are_exactly_0_in_every_block() -> None:
    mask = torch.rand(150, 150) < 0.5
    empty = torch.tensor([0, 5, 63, 64, 100, 127, 128, 149])
    mask[empty] = False
    for dtype in (torch.float32, torch.bfloat16):
        q1, k1, q2, k2, v = (x.to(dtype) for x in operands())
        for out in (
            diff_attention(q1, k1, q2, k2, v, 0.5, attn_mask=mask, impl="cpu"),
            attention(q1, k1, v, attn_mask=mask, sink=torch.ones(4), impl="cpu"),
        ):
            assert out.any(-1).all(1).logical_not().nonzero()[:, 1].tolist() == empty.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens, keys", [(1, 1), (7, 300), (70, 70), (129, 130), (130, 17)])
def test_every_element_is_written(tokens: int, keys: int, dtype: torch.dtype) -> None:
    given = [x.to(dtype) for x in operands(tokens, keys, 24, 40)]
    options = {"is_causal": True, "impl": "cpu"}
    clean = diff_attention(*given, 0.5, **options)
    with poisoned_memory():
        assert torch.empty(3, dtype=dtype).isnan().all(), "the memory is not poisoned"
        assert torch.equal(diff_attention(*given, 0.5, **options), clean)
    assert clean.isfinite().all()


def test_what_an_earlier_call_left_in_the_kernels_memory_changes_nothing() -> None:
    given = operands(100, 100, 24, 40)
    clean = diff_attention(*given, 0.5, is_causal=True, impl="cpu")
    for tokens in (100, 300):
        poison = [torch.full_like(x, torch.nan) for x in operands(tokens, tokens, 64, 128)]
        assert diff_attention(*poison, 0.5, impl="cpu").isnan().all()
        assert torch.equal(diff_attention(*given, 0.5, is_causal=True, impl="cpu"), clean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strided_inputs_give_the_bits_of_contiguous_ones(dtype: torch.dtype) -> None:
    """Heads behind tokens and every other head, as layers have them; keys of one head for all, by a stride of 0."""
    q = torch.randn(2, 150, 8, 32).transpose(1, 2).to(dtype)
    k = torch.randn(2, 150, 4, 32).transpose(1, 2).to(dtype)
    v = torch.randn(2, 150, 1, 48).transpose(1, 2).to(dtype).expand(-1, 2, -1, -1)
    views = (q[:, 0::2], k[:, 0::2], q[:, 1::2], k[:, 1::2], v)
    lam = torch.rand(4, 150).T[None, :, :, None].transpose(1, 2)
    mask = (torch.rand(150, 2, 1, 150) < 0.7).transpose(0, 2).transpose(0, 1)
    options = {"is_causal": True, "attn_mask": mask, "impl": "cpu"}
    strided = diff_attention(*views, lam, **options)
    options["attn_mask"] = mask.contiguous()
    assert torch.equal(strided, diff_attention(*(x.contiguous() for x in views), lam.contiguous(), **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keys", [150, 700])
def test_the_number_of_threads_changes_no_bit(keys: int, dtype: torch.dtype) -> None:
    given = [x.to(dtype) for x in operands(150, keys)]
    found = []
    for count in (1, 2, 5, 1):
        with threads(count):
            found.append(diff_attention(*given, 0.5, is_causal=True, impl="cpu"))
    assert all(torch.equal(x, found[0]) for x in found)
