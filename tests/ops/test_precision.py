"""What each dtype gives, and how far 16 bits may be off."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from diffattn.ops import attention, attention_maps, diff_attention, diff_attention_maps
from support.implementations import serving, with_dtypes

every_impl = pytest.mark.parametrize("impl", ["auto", *serving(torch.float32, 16)])
every_narrow_impl = with_dtypes(torch.bfloat16, torch.float16, width=16)
NARROW_ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Largest relative error of one rounding."""


def operands(dtype: torch.dtype, tokens: int = 65) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    q1, q2 = torch.randn(2, 2, 4, tokens, 16, generator=generator).to(dtype)
    k1, k2 = torch.randn(2, 2, 2, tokens, 16, generator=generator).to(dtype)
    return q1, k1, q2, k2, torch.randn(2, 2, tokens, 32, generator=generator).to(dtype)


@with_dtypes(torch.float16, torch.bfloat16, torch.float32, torch.float64, width=16)
def test_the_result_has_the_dtype_of_the_queries(dtype: torch.dtype, impl: str) -> None:
    q1, k1, q2, k2, v = operands(dtype, 5)
    lam, slopes, sink = torch.tensor(0.3), torch.rand(4), torch.rand(4)
    for options in ({}, {"is_causal": True}, {"alibi": slopes}, {"attn_mask": torch.zeros(5, 5)}):
        assert diff_attention(q1, k1, q2, k2, v, lam, **options, impl=impl).dtype == dtype
        assert attention(q1, k1, v, **options, sink=sink, impl=impl).dtype == dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert attention_maps(q1, k1).dtype == wide
    assert diff_attention_maps(q1, k1, q2, k2)[1].dtype == wide


@every_narrow_impl
@pytest.mark.parametrize("restriction", ["causal", "alibi", "documents"])
def test_16_bits_are_off_by_no_more_than_their_roundings(restriction: str, dtype: torch.dtype, impl: str) -> None:
    q1, k1, q2, k2, v = operands(dtype)
    options = {
        "causal": {},
        "alibi": {"alibi": torch.tensor([1.0, 0.3, 0.1, 0.03])},
        "documents": {"documents": torch.arange(65).expand(2, 65) // 20},
    }[restriction]
    lam = 0.8
    exact = [x.double() for x in (q1, k1, q2, k2, v)]
    wanted = diff_attention(*exact, lam, is_causal=True, **options, impl="reference")
    first, second = diff_attention_maps(*exact[:4], is_causal=True, **options)
    # Torch rounds the weights before the product with V, and each map's result: two roundings of A1 |v| + lam A2 |v|;
    # then the difference is rounded once. The statistics are float32 and cost nothing by comparison.
    size = (first + lam * second) @ exact[4].abs().repeat_interleave(2, 1)
    allowed = NARROW_ROUNDING[dtype] * (2 * size + wanted.abs()) + 1e-6
    out = diff_attention(q1, k1, q2, k2, v, lam, is_causal=True, **options, impl=impl)
    assert ((out.double() - wanted).abs() <= allowed).all()


@every_narrow_impl
def test_16_bit_gradients_stay_near_those_of_float64(dtype: torch.dtype, impl: str) -> None:
    lam = torch.tensor(0.8, requires_grad=True)
    leaves = [x.requires_grad_() for x in operands(dtype)]
    exact = [x.detach().double().requires_grad_() for x in (*leaves, lam)]
    found = torch.autograd.grad(diff_attention(*leaves, lam, is_causal=True, impl=impl).sum(), [*leaves, lam])
    wanted = torch.autograd.grad(diff_attention(*exact, is_causal=True).sum(), exact)
    for x, right in zip(found, wanted, strict=True):
        # A handful of roundings, in the norm: single entries cancel.
        assert (x.double() - right).norm() <= 4 * NARROW_ROUNDING[dtype] * right.norm() + 1e-6
    assert [x.dtype for x in found] == [dtype] * 5 + [torch.float32]


@every_narrow_impl
def test_lam_is_float32_beside_16_bit_inputs(dtype: torch.dtype, impl: str) -> None:
    """On the first row A1 = A2 = 1, so that v = 256 shows lam's own digits: 1 - lam must not round to 0."""
    q, k, v = (
        torch.zeros(1, 1, 2, 16, dtype=dtype),
        torch.zeros(1, 1, 2, 16, dtype=dtype),
        256 * torch.ones(1, 1, 2, 16),
    )
    lam = torch.tensor(1 - 2.0**-14)
    out = diff_attention(q, k, q, k, v.to(dtype), lam, is_causal=True, impl=impl)
    assert_close(out.float(), torch.full((1, 1, 2, 16), 2.0**-6))


@every_narrow_impl
def test_the_softmax_statistics_are_float32(dtype: torch.dtype, impl: str) -> None:
    """3000 equal keys: a sum in 16 bits would stop at 256 (bfloat16) or 2048 (float16)."""
    q, k, v = torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 3000, 16), torch.ones(1, 1, 3000, 16)
    out = attention(q.to(dtype), k.to(dtype), v.to(dtype), impl=impl)
    assert_close(out.float(), torch.ones(1, 1, 2, 16), rtol=NARROW_ROUNDING[dtype], atol=0)


@every_narrow_impl
def test_a_bias_is_float32_beside_16_bit_inputs(dtype: torch.dtype, impl: str) -> None:
    """Around 500, bfloat16 has steps of 2 and float16 of 0.25."""
    bias = 500 + torch.randn(7, 9)
    q, k, v = torch.zeros(1, 1, 7, 16), torch.zeros(1, 1, 9, 16), torch.eye(9, 16)[None, None]
    out = attention(q.to(dtype), k.to(dtype), v.to(dtype), attn_mask=bias, impl=impl)
    assert_close(out[0, 0, :, :9].float(), bias.softmax(-1), rtol=2 * NARROW_ROUNDING[dtype], atol=0)


@every_impl
def test_large_logits_do_not_overflow(impl: str) -> None:
    q, k, v = 1e3 * torch.randn(1, 1, 20, 16), 1e3 * torch.randn(1, 1, 20, 16), torch.randn(1, 1, 20, 16)
    out = attention(q, k, v, impl=impl)
    best = (q @ k.mT).argmax(-1)
    assert_close(out, v[:, :, best[0, 0]])


@every_impl
def test_autocast_changes_nothing(impl: str) -> None:
    q1, k1, q2, k2, v = operands(torch.float32)
    alone = diff_attention(q1, k1, q2, k2, v, 0.5, is_causal=True, impl=impl)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = diff_attention(q1, k1, q2, k2, v, 0.5, is_causal=True, impl=impl)
    assert inside.dtype == torch.float32 and torch.equal(alone, inside)


@every_impl
def test_the_same_call_gives_the_same_bits(impl: str) -> None:
    q1, k1, q2, k2, v = operands(torch.float32)
    runs = [diff_attention(q1, k1, q2, k2, v, 0.5, is_causal=True, impl=impl) for _ in range(2)]
    assert torch.equal(*runs)
