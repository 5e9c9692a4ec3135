"""Few queries on many keys, which the fused CPU kernel reads in spans: against the formula in float64."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from diffattn.ops import attention, diff_attention
from diffattn.ops.normed import normed_attention, normed_diff_attention
from support.cpu_kernel import needs_kernel, poisoned_memory, threads

pytestmark = needs_kernel
CLOSE = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8}
"""Relative to the terms' size, in the Euclidean norm: float32's rounding, a step of bfloat16."""


def operands(
    queries: int, keys: int, groups: int = 2, share: int = 2, width: int = 32, value: int = 64, batch: int = 2
) -> list[Tensor]:
    """q1, k1, q2, k2, v."""
    q, k = (batch, groups * share, queries, width), (batch, groups, keys, width)
    return [torch.randn(shape) for shape in (q, k, q, k, (*k[:3], value))]


def assert_near(found: Tensor, given: list[Tensor], lam: Any, largest: float = 4.0, **options: Any) -> None:
    """For logits up to `largest`, which float32 knows to their own rounding."""
    wide = [x.double() for x in given]
    truth = diff_attention(*wide, lam, **options, impl="reference")
    # (A1 + |lam| A2) |v|: what the two reads are made of, before they cancel.
    terms = diff_attention(*wide[:4], wide[4].abs(), -abs(lam), **options, impl="reference")
    assert (found.double() - truth).norm() <= CLOSE[found.dtype] * max(1.0, largest / 4) * terms.norm()


@pytest.mark.parametrize("keys", [1, 2, 7, 100, 128, 129, 1000, 1023, 1024, 1025, 2048, 3000])
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_few_queries_are_the_formula(keys: int, data: st.DataObject) -> None:
    """A span is 1024 keys."""
    draw = data.draw
    queries = draw(st.integers(1, 8))
    groups, share = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3, 8]))
    width, value = draw(st.sampled_from([16, 24, 64, 256])), draw(st.sampled_from([8, 32, 128, 512]))
    torch.manual_seed(keys)
    q1, k1, q2, k2, v = operands(queries, keys, groups, share, width, value)
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    given = [x.to(dtype) for x in (q1, k1, q2, k1 if draw(st.booleans()) else k2, v)]
    if torch.equal(given[1], given[3]):
        given[3] = given[1]
    options: dict[str, Any] = {"is_causal": draw(st.booleans())}
    if draw(st.booleans()):
        options["key_lengths"] = torch.randint(0, keys + 1, (2,))
    if options["is_causal"] and draw(st.booleans()):
        options["window"] = draw(st.sampled_from([1, 100, 1500]))
    if draw(st.booleans()) and queries <= keys:
        options["documents"] = torch.randint(-1, 3, (2, keys)).sort(-1).values
    if draw(st.booleans()):
        options["attn_mask"] = torch.rand(2, 1, queries, keys) < draw(st.sampled_from([0.01, 0.5, 0.9]))
    if draw(st.booleans()):
        options["alibi"] = torch.rand(groups * share) / 100
    lam = draw(st.sampled_from([0.5, -0.5, 1.0]))
    assert_near(diff_attention(*given, lam, **options, impl="cpu"), given, lam, **options)


@pytest.mark.parametrize("shape", [(), (4, 1, 1), (2, 1, 1, 1), (3, 1), (2, 4, 3, 1)])
def test_lam_of_every_shape(shape: tuple[int, ...]) -> None:
    given, lam = operands(3, 1100), torch.randn(shape)
    out = diff_attention(*given, lam, is_causal=True, impl="cpu")
    wanted = diff_attention(*(x.double() for x in given), lam, is_causal=True, impl="reference")
    assert_close(out.double(), wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("share, queries", [(12, 8), (33, 1), (9, 8), (64, 2)])
@pytest.mark.parametrize("shared", [True, False])
def test_more_rows_on_one_group_than_a_block_holds(share: int, queries: int, shared: bool) -> None:
    q1, k1, q2, k2, v = operands(queries, 1100, 1, share)
    given = [q1, k1, q2, k1 if shared else k2, v]
    assert_near(diff_attention(*given, 0.5, is_causal=True, impl="cpu"), given, 0.5, is_causal=True)


def restrictions_by_head(heads: int, queries: int, keys: int) -> dict[str, Any]:
    """Another mask and slope for each; the first query of the first head has nothing to attend."""
    mask = torch.randn(heads, queries, keys).masked_fill(torch.rand(heads, queries, keys) < 0.3, -torch.inf)
    mask[0, 0] = -torch.inf
    return {"is_causal": True, "attn_mask": mask, "alibi": torch.rand(heads) / 100}


@pytest.mark.parametrize("maps", ["one", "two", "two of the same keys"])
@pytest.mark.parametrize("share, queries", [(1, 1), (2, 1), (3, 1), (2, 2), (1, 5)])
def test_a_last_chunk_of_any_size(share: int, queries: int, maps: str) -> None:
    """A chunk is 128 keys; up to four rows on the same keys are read from four places of it at a time."""
    for keys in (*range(1, 10), *range(125, 138), *range(1023, 1028)):
        q1, k1, q2, k2, v = operands(queries, keys, share=share)
        options = restrictions_by_head(2 * share, queries, keys)
        if maps == "one":
            sink = torch.randn(2 * share)
            out = attention(q1, k1, v, **options, sink=sink, impl="cpu")
            wide = (q1.double(), k1.double(), v.double())
            wanted = attention(*wide, **options, sink=sink.double(), impl="reference")
            # Values are up to 4, and the logits, up to 8, are known to their rounding.
            assert_close(out.double(), wanted, rtol=0, atol=5e-6)
        else:
            given = [q1, k1, q2, k2 if maps == "two" else k1, v]
            out = diff_attention(*given, 0.5, **options, impl="cpu")
            assert_near(out, given, 0.5, **options)
        assert not out[:, 0, 0].any()


@pytest.mark.parametrize("share, queries", [(5, 8), (7, 5), (11, 3), (33, 1)])
@pytest.mark.parametrize("shared", [True, False])
def test_heads_that_the_rows_of_a_block_do_not_divide(share: int, queries: int, shared: bool) -> None:
    """Two maps of a block have room for 4, 6, 10 and 32 heads of so many queries; one or more are left over."""
    q1, k1, q2, k2, v = operands(queries, 131, 2, share)
    given, lam = [q1, k1, q2, k1 if shared else k2, v], torch.randn(2 * share, queries, 1)
    options = restrictions_by_head(2 * share, queries, 131)
    assert_near(diff_attention(*given, lam, **options, impl="cpu"), given, lam, **options)


@pytest.mark.parametrize("sink", [None, -torch.inf, 0.0, 30.0])
@pytest.mark.parametrize("keys", [1, 300, 2500])
def test_ordinary_attention_with_and_without_sink(keys: int, sink: float | None) -> None:
    q, k, _, _, v = operands(2, keys)
    logits = None if sink is None else torch.full((4,), sink)
    out = attention(q, k, v, is_causal=True, sink=logits, impl="cpu")
    wide = None if logits is None else logits.double()
    wanted = attention(q.double(), k.double(), v.double(), is_causal=True, sink=wide, impl="reference")
    assert (out.double() - wanted).norm() <= 1e-6 * wanted.norm() + 1e-12


@pytest.mark.parametrize("eps", [1e-5, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_behind_it(dtype: torch.dtype, eps: float | None) -> None:
    given, weight = [x.to(dtype) for x in operands(3, 1100)], None if eps is None else torch.rand(64)
    options: dict[str, Any] = {"is_causal": True, "key_lengths": torch.tensor([1100, 0])}
    q, k, _, _, v = given
    for run, inputs in ((normed_diff_attention, (*given, 0.3)), (normed_attention, (q, k, v))):
        out = run(*inputs, weight, eps, 0.7, **options, impl="cpu")
        wide = [x.double() if isinstance(x, Tensor) else x for x in inputs]
        wanted = run(*wide, weight, eps, 0.7, **options, impl="reference")
        assert (out.double() - wanted).norm() <= 2 * CLOSE[dtype] * wanted.norm()
        assert not out[1].any() and out.dtype == dtype


@pytest.mark.parametrize("queries", [1, 8])
def test_logits_that_grow_along_the_cache_do_not_overflow(queries: int) -> None:
    """Each span has its own maximum; the last key's logit is 500 above the first's, or below."""
    given, ramp = operands(queries, 3000), torch.linspace(-250, 250, 3000)
    for mask in (ramp, -ramp):
        assert_near(diff_attention(*given, 0.5, attn_mask=mask, impl="cpu"), given, 0.5, 250.0, attn_mask=mask)


def test_a_key_of_nan_shows_if_it_may_be_attended_and_changes_no_bit_otherwise() -> None:
    q1, k1, q2, k2, v = operands(2, 2100)
    options: dict[str, Any] = {"is_causal": True, "key_lengths": torch.tensor([2100, 1500]), "impl": "cpu"}
    before = diff_attention(q1, k1, q2, k2, v, 0.5, **options)
    k1[:, :, 1700] = torch.nan
    after = diff_attention(q1, k1, q2, k2, v, 0.5, **options)
    assert after[0].isnan().all() and torch.equal(after[1], before[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 1025), (8, 3000)])
def test_every_element_is_written_with_the_same_bits_whatever_the_threads(
    queries: int, keys: int, dtype: torch.dtype
) -> None:
    given = [x.to(dtype) for x in operands(queries, keys)]
    options: dict[str, Any] = {"is_causal": True, "key_lengths": torch.tensor([keys, keys // 2]), "impl": "cpu"}
    clean = diff_attention(*given, 0.5, **options)
    assert clean.isfinite().all()
    for count in (1, 2, 5):
        with threads(count), poisoned_memory():
            assert torch.equal(diff_attention(*given, 0.5, **options), clean)


def test_a_strided_cache_gives_the_bits_of_a_contiguous_one() -> None:
    q, k = torch.randn(2, 1, 8, 32).transpose(1, 2), torch.randn(2, 1100, 4, 32).transpose(1, 2)
    v = torch.randn(2, 1300, 2, 64).transpose(1, 2)[:, :, 100:1200]
    views = (q[:, 0::2], k[:, 0::2], q[:, 1::2], k[:, 1::2], v)
    strided = diff_attention(*views, 0.5, is_causal=True, impl="cpu")
    assert torch.equal(strided, diff_attention(*(x.contiguous() for x in views), 0.5, is_causal=True, impl="cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("step", [1, 3, 8, 9])
def test_prefill_and_decoding_equal_the_full_forward(step: int, dtype: torch.dtype) -> None:
    """Pieces of `step` queries on a static cache behind a prefill of 130, with a window, against one call."""
    tokens, given = 130 + 4 * step, [x.to(dtype) for x in operands(130 + 4 * step, 130 + 4 * step)]
    q1, k1, q2, k2, v = given
    options: dict[str, Any] = {"is_causal": True, "window": 100, "impl": "cpu"}
    whole = normed_diff_attention(*given, 0.5, None, 1e-5, 0.7, **options)
    pieces = []
    for start in (0, *range(130, tokens, step)):
        rows = slice(start, start + step if start else 130)
        lengths = torch.full((2,), rows.stop)
        pieces.append(
            normed_diff_attention(
                q1[:, :, rows], k1, q2[:, :, rows], k2, v, 0.5, None, 1e-5, 0.7, key_lengths=lengths, **options
            )
        )
    # Where the processor multiplies bfloat16, the forward pass rounds its maps to it, and decoding does not.
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2.0**-7, "atol": 2.0**-7}
    assert_close(torch.cat(pieces, 2), whole, **close)
