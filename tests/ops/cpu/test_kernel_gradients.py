"""The fused CPU kernel's gradients against the formula's in float64."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.testing import assert_close

from diffattn.ops import attention, diff_attention
from support.cpu_kernel import KernelCase, assert_near, kernel_cases, needs_kernel, poisoned_memory, threads

pytestmark = needs_kernel
few = settings(max_examples=120, deadline=None, derandomize=True)
Gradients = tuple[Tensor, ...]


@few
@given(kernel_cases())
def test_of_differential_attention(case: KernelCase) -> None:
    assert_near(case, case.gradients("cpu", torch.float32))


@few
@given(kernel_cases(maps=1))
def test_of_ordinary_attention_with_and_without_sink(case: KernelCase) -> None:
    assert_near(case, case.gradients("cpu", torch.float32))


@few
@given(kernel_cases(dtype=torch.bfloat16))
def test_of_differential_attention_in_bfloat16(case: KernelCase) -> None:
    assert_near(case, case.gradients("cpu", torch.bfloat16))


@few
@given(kernel_cases(dtype=torch.bfloat16, maps=1))
def test_of_ordinary_attention_in_bfloat16(case: KernelCase) -> None:
    assert_near(case, case.gradients("cpu", torch.bfloat16))


def leaves(
    batch: int = 1,
    groups: int = 2,
    share: int = 2,
    tokens: int = 150,
    keys: int = 150,
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """q1, k1, q2, k2 of width 24, v of width 40, lam of each head and token."""
    q, k = (batch, groups * share, tokens, 24), (batch, groups, keys, 24)
    operands = [torch.randn(shape).to(dtype or torch.float32) for shape in (q, k, q, k, (*k[:3], 40))]
    return [x.requires_grad_() for x in (*operands, torch.rand(groups * share, tokens, 1))]


def gradients(given: list[Tensor], **options: Any) -> Gradients:
    """Of everything, for a cotangent that is the same for equal results."""
    out = diff_attention(*given, **{"is_causal": True, "impl": "cpu", **options})
    return torch.autograd.grad(out, given, torch.ones_like(out).cumsum(-1).sin())


def same_bits(one: Gradients, other: Gradients) -> bool:
    return all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


DOCUMENTS = {
    "packed": torch.tensor([5] * 3 + [2] * 140 + [9] * 64 + [0] * 50),
    "out of order": torch.arange(257) * 7 % 3,
    "interleaved far apart": torch.arange(257) // 64 % 2 * 1000,
    "padding on both sides": torch.tensor([-1] * 70 + [4] * 100 + [-3] * 87),
    "padding inside": torch.where(torch.arange(257) % 5 == 0, -2, 1),
    "as many as keys": torch.arange(257) - 1,
}


@pytest.mark.parametrize("options", [{"is_causal": True}, {"is_causal": True, "window": 70}, {}])
@pytest.mark.parametrize("tokens", [257, 100])
@pytest.mark.parametrize("layout", DOCUMENTS)
def test_under_documents_that_span_blocks(layout: str, tokens: int, options: dict[str, Any]) -> None:
    """Ids beyond what 32 bits hold are ids like others."""
    q1, k1, q2, k2, v, lam = (x.detach().double() for x in leaves(2, 1, 2, tokens, 257))
    both = torch.stack((DOCUMENTS[layout], DOCUMENTS[layout].flip(0) + 2**33 * (DOCUMENTS[layout].flip(0) >= 0)))
    cotangent = torch.randn(2, 2, tokens, 40).double()
    given = {"is_causal": False, **options, "documents": both}
    case = KernelCase(torch.float32, q1, k1, q2, k2, v, lam, None, cotangent, given)
    assert_near(case, {**case.gradients("cpu", torch.float32), "out": case.result("cpu", torch.float32)})


def test_of_rows_with_nothing_to_attend_are_exactly_0_in_every_block() -> None:
    mask = torch.rand(150, 150) < 0.5
    empty = torch.tensor([0, 5, 63, 64, 100, 127, 128, 149])
    mask[empty], mask[:, 77] = False, False
    q1, k1, q2, k2, v, lam = gradients(leaves(), attn_mask=mask, is_causal=False)
    for x in (q1, q2, lam[None]):
        assert x.any(-1).all(1).logical_not().nonzero()[:, 1].tolist() == empty.tolist()
    for x in (k1, k2, v):
        assert x.any(-1).all(1).logical_not().nonzero()[:, 1].tolist() == [77]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens, keys", [(1, 1), (7, 300), (70, 70), (129, 130), (130, 17)])
@pytest.mark.parametrize("count", [1, 5])
def test_every_element_is_written(tokens: int, keys: int, dtype: torch.dtype, count: int) -> None:
    """Also where 5 threads share one group's keys."""
    given = leaves(1, 1, 2, tokens, keys, dtype)
    with threads(count):
        clean = gradients(given)
        with poisoned_memory():
            assert same_bits(gradients(given), clean)
    assert all(x.isfinite().all() for x in clean)


def test_keys_that_no_query_reaches_have_gradients_of_0() -> None:
    """Blocks of keys are skipped under a window, a length and documents: their gradients are written all the same."""
    given = leaves(tokens=20, keys=600)
    documents = torch.tensor([3] * 200 + [4] * 400)[None]
    for options, hidden in (
        ({"window": 5}, slice(0, 576)),
        ({"key_lengths": torch.tensor([150])}, slice(150, 600)),
        ({"documents": documents}, slice(0, 200)),
    ):
        with poisoned_memory():
            _, k1, _, k2, v, _ = gradients(given, **options)
        for x in (k1, k2, v):
            assert not x[:, :, hidden].any() and x.any()


def test_what_an_earlier_call_left_in_the_kernels_memory_changes_nothing() -> None:
    given = leaves(tokens=100, keys=100)
    clean = gradients(given)
    for tokens in (100, 300):
        poison = [torch.full_like(x, torch.nan).requires_grad_() for x in leaves(tokens=tokens, keys=tokens)]
        assert gradients(poison)[0].isnan().all()
        assert same_bits(gradients(given), clean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_strided_inputs_have_the_bits_of_contiguous_ones(dtype: torch.dtype) -> None:
    q = torch.randn(2, 150, 8, 24).transpose(1, 2).to(dtype)
    k = torch.randn(2, 150, 4, 24).transpose(1, 2).to(dtype)
    v = torch.randn(2, 150, 1, 40).transpose(1, 2).to(dtype).expand(-1, 2, -1, -1)
    views = (q[:, 0::2], k[:, 0::2], q[:, 1::2], k[:, 1::2], v, torch.rand(4, 150).T[:, :, None].transpose(0, 1))
    whole = [x.contiguous().requires_grad_() for x in views]
    wanted = torch.randn(2, 150, 4, 80).transpose(1, 2)[..., ::2].to(dtype)
    found = []
    for operands in ([x.detach().requires_grad_() for x in views], whole):
        out = diff_attention(*operands, is_causal=True, impl="cpu")
        found.append(torch.autograd.grad(out, operands, wanted if not found else wanted.contiguous()))
    assert same_bits(*found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_shared_keys_are_those_of_both_maps_together(dtype: torch.dtype) -> None:
    q1, k1, q2, _, v, lam = leaves(dtype=dtype)
    out = diff_attention(q1, k1, q2, k1, v, lam, is_causal=True, impl="cpu")
    cotangent = torch.ones_like(out).cumsum(-1).sin()
    together = torch.autograd.grad(out, [q1, k1, q2, v, lam], cotangent)
    k2 = k1.detach().clone().requires_grad_()
    apart = gradients([q1, k1, q2, k2, v, lam])
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2.0**-7, "atol": 0.02}
    assert_close(together, (apart[0], apart[1] + apart[3], apart[2], *apart[4:]), **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 2, 10])
def test_repetition_gives_the_same_bits_with_any_number_of_threads(groups: int, dtype: torch.dtype) -> None:
    """Where threads do not share (batch, group) pairs evenly, pairs are split, and sums differ by their rounding."""
    given, found = leaves(1, groups, 1 if groups > 2 else 2, dtype=dtype), {}
    for count in (1, 2, 5):
        with threads(count):
            found[count] = gradients(given)
            assert all(same_bits(gradients(given), found[count]) for _ in range(2))
    for count in (2, 5):
        if groups % count == 0:
            assert same_bits(found[count], found[1])
        exact = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2.0**-7, "atol": 1e-5}
        assert_close(found[count], found[1], **exact)


def test_a_second_derivative_is_refused_with_a_way_out() -> None:
    q, k, _, _, v, _ = leaves()
    first = torch.autograd.grad(attention(q, k, v, impl="cpu").sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="reference"):
        torch.autograd.grad(first[0].sum(), q)


@pytest.mark.parametrize("frozen", ["queries", "keys", "value", "lam"])
def test_frozen_operands_change_no_other_gradient(frozen: str) -> None:
    given = leaves()
    everything = gradients(given)
    fixed = {"queries": (0, 2), "keys": (1, 3), "value": (4,), "lam": (5,)}[frozen]
    some = [x.detach() if i in fixed else x for i, x in enumerate(given)]
    out = diff_attention(*some, is_causal=True, impl="cpu")
    kept = [i for i in range(6) if i not in fixed]
    found = torch.autograd.grad(out, [given[i] for i in kept], torch.ones_like(out).cumsum(-1).sin())
    assert same_bits(found, tuple(everything[i] for i in kept))
