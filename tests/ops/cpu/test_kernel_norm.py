"""The per-head norm and gain as the fused CPU kernel's epilogue, against the formula in float64."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from diffattn.ops import diff_attention
from diffattn.ops.normed import normed_attention, normed_diff_attention
from support.cpu_kernel import (
    ROUNDING,
    KernelCase,
    kernel_cases,
    largest_logit,
    needs_kernel,
    poisoned_memory,
    threads,
    truth_and_sizes,
)

pytestmark = needs_kernel


def leaves(
    tokens: int = 70,
    keys: int = 70,
    width: int = 16,
    value: int = 40,
    groups: int = 2,
    share: int = 2,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """q1, k1, q2, k2, v, lam of each head, the norm's weight."""
    q, k = (2, groups * share, tokens, width), (2, groups, keys, width)
    operands = [torch.randn(shape).to(dtype) for shape in (q, k, q, k, (*k[:3], value))]
    return [x.requires_grad_() for x in (*operands, torch.rand(groups * share, 1, 1) / 2, 0.5 + torch.rand(value))]


def normed(given: list[Tensor], eps: float | None = 1e-5, **options: Any) -> tuple[Tensor, ...]:
    """The result and the gradients of everything."""
    weight = None if eps is None else given[6]
    out = normed_diff_attention(*given[:6], weight, eps, 0.7, **{"is_causal": True, "impl": "cpu", **options})
    wanted = given[:6] if weight is None else given
    return out, *torch.autograd.grad(out, wanted, torch.ones_like(out).cumsum(-1).sin())


def assert_near(given: list[Tensor], found: tuple[Tensor, ...], allowed: float, **options: Any) -> None:
    """In the Euclidean norm of each tensor: the truth is taken in float64 from the same numbers."""
    truth = normed([x.detach().double().requires_grad_() for x in given], **{**options, "impl": "reference"})
    for number, (x, right) in enumerate(zip(found, truth, strict=True)):
        assert (x.double() - right).norm() <= allowed * right.norm(), f"result or gradient {number}"


def truth_and_sizes_behind(case: KernelCase, weight: Tensor | None, eps: float | None) -> Any:
    """As `truth_and_sizes` of the call with the norm and a gain of 0.7 behind it, which pass on all terms' sizes."""
    truth, sizes = truth_and_sizes(case)
    x, factor = truth["out"], 0.7 * (1.0 if weight is None else weight.double())
    root = torch.ones(()) if eps is None else (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    one, cotangent = x.abs() * root, case.cotangent.abs() * factor

    def both(size: Tensor) -> Tensor:
        """|J| size of the Jacobian root (1 - n n^T / E) with n = x root."""
        return root * size if eps is None else root * (size + one * (one * size).mean(-1, keepdim=True))

    _, gradient_sizes = truth_and_sizes(dataclasses.replace(case, cotangent=both(cotangent)))
    out_size = both(sizes["out"])
    sizes = {**gradient_sizes, "out": factor * out_size}
    if weight is not None:
        sizes["weight"] = 0.7 * (case.cotangent.abs() * out_size).sum((0, 1, 2))
    return normed_case(case, weight, eps, "reference", torch.float64), sizes


def normed_case(
    case: KernelCase, weight: Tensor | None, eps: float | None, impl: str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Result and gradients of the case with the norm behind it."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    at = {name: x.to(exact if name in ("lam", "sink") else dtype) for name, x in case.tensors().items()}
    if weight is not None:
        at["weight"] = weight.to(exact)
    at = {name: x.requires_grad_() for name, x in at.items()}
    behind = (at.get("weight"), eps, 0.7)
    options = {name: x.to(exact) if name == "alibi" else x for name, x in case.restrictions.items()}
    if case.q2 is None:
        sink = at.get("sink")
        out = normed_attention(at["q1"], at["k1"], at["v"], *behind, **options, sink=sink, impl=impl)
    else:
        lam = at.get("lam", case.lam)
        k2 = at.get("k2", at["k1"])
        out = normed_diff_attention(at["q1"], at["k1"], at["q2"], k2, at["v"], lam, *behind, **options, impl=impl)
    found = torch.autograd.grad(out, list(at.values()), case.cotangent.to(out.dtype))
    return {"out": out.detach(), **dict(zip(at, found, strict=True))}


def assert_case(case: KernelCase, eps: float | None, has_weight: bool) -> None:
    weight = torch.rand(case.v.shape[-1]) + 0.5 if has_weight and eps is not None else None
    truth, sizes = truth_and_sizes_behind(case, weight, eps)
    for name, value in normed_case(case, weight, eps, "cpu", case.dtype).items():
        # The norm's own error, and that of its statistics in the backward pass, come on top.
        allowed = 4 * ROUNDING[case.dtype] * (1 + (largest_logit(case) if case.dtype == torch.float32 else 0.0))
        assert (value.double() - truth[name]).norm() <= allowed * sizes[name].norm(), name


# Large enough that the norm does not blow up what cancelled; smaller ones follow below.
epsilons = st.sampled_from([0.1, 1.0, None])
few = settings(max_examples=80, deadline=None, derandomize=True)


@few
@given(kernel_cases(), epsilons, st.booleans())
def test_behind_differential_attention(case: KernelCase, eps: float | None, has_weight: bool) -> None:
    assert_case(case, eps, has_weight)


@few
@given(kernel_cases(maps=1), epsilons, st.booleans())
def test_behind_ordinary_attention_with_and_without_sink(case: KernelCase, eps: float | None, has_weight: bool) -> None:
    assert_case(case, eps, has_weight)


@few
@given(kernel_cases(dtype=torch.bfloat16), epsilons, st.booleans())
def test_in_bfloat16(case: KernelCase, eps: float | None, has_weight: bool) -> None:
    assert_case(case, eps, has_weight)


def test_float32_is_within_a_few_millionths_of_float64() -> None:
    given = leaves(tokens=150, keys=150, width=64, value=128)
    assert_near(given, normed(given), 2e-6)


def test_the_norm_is_that_of_the_kernels_own_result() -> None:
    given = [x.detach() for x in leaves()]
    plain = diff_attention(*given[:6], is_causal=True, impl="cpu")
    root = (plain.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    out = normed_diff_attention(*given, 1e-5, 0.7, is_causal=True, impl="cpu")
    assert_close(out, plain * root * given[6] * 0.7, rtol=1e-5, atol=1e-6)
    gain = normed_diff_attention(*given[:6], None, None, 0.7, is_causal=True, impl="cpu")
    assert_close(gain, 0.7 * plain, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_zeros_stay_0_and_their_gradients_finite(dtype: torch.dtype) -> None:
    """lam = 1 at the first causal position, and padding. There the norm multiplies by 1 / sqrt(eps) = 316."""
    given = leaves(dtype=dtype)
    given[5] = torch.ones(4, 1, 1, requires_grad=True)
    documents = torch.where(torch.arange(70) < 40, 0, -1).expand(2, 70)
    found = normed(given, documents=documents)
    assert not found[0][:, :, 0].any() and not found[0][:, :, 40:].any() and found[0][:, :, 1:40].any(-1).all()
    assert all(x.isfinite().all() for x in found)
    assert not found[1][:, :, 40:].any() and not found[3][:, :, 40:].any()
    if dtype == torch.float32:
        # 316 times the rounding of the first row, beside gradients of its own size.
        assert_near(given, found, 1e-4, documents=documents)


def test_bfloat16_is_rounded_once_behind_the_norm() -> None:
    given = leaves(tokens=150, keys=150, width=64, value=128, dtype=torch.bfloat16)
    found = normed(given)
    # 2^-8: a step of bfloat16, the rounding of results and of products' operands.
    assert_near(given, found, 2.0**-8 * 1.5)
    assert [x.dtype for x in found] == [torch.bfloat16] * 6 + [torch.float32] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens, keys", [(1, 1), (7, 300), (70, 70), (129, 130)])
@pytest.mark.parametrize("count", [1, 5])
def test_every_element_is_written_and_repetition_gives_the_same_bits(
    tokens: int, keys: int, dtype: torch.dtype, count: int
) -> None:
    """The weight's gradient is put together from the threads' parts."""
    given = leaves(tokens, keys, groups=1, dtype=dtype)
    with threads(count):
        clean = normed(given)
        with poisoned_memory():
            poisoned = normed(given)
    assert all(x.isfinite().all() and torch.equal(x, y) for x, y in zip(clean, poisoned, strict=True))


def test_the_number_of_threads_changes_no_more_than_roundings() -> None:
    given, found = leaves(groups=1), []
    for count in (1, 2, 5):
        with threads(count):
            found.append(normed(given))
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0])
        assert_close(other, found[0], rtol=1e-5, atol=1e-5)
