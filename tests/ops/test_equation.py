"""Every restriction, alone and combined, against a loop over single numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.testing import assert_close

from diffattn.ops import attention, attention_maps, diff_attention, diff_attention_maps
from support.attention_cases import Call, calls
from support.attention_loop import as_numpy, slow_map, slow_read
from support.implementations import RUNNING, home, serving

# float64 against float64: sums in another order.
CLOSE = {"rtol": 1e-10, "atol": 1e-11}
EXACT = ["auto", *serving(torch.float64, 1)]
every_impl = pytest.mark.parametrize("impl", ["auto", *RUNNING])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(calls())
def test_differential_attention_is_the_loop(call: Call) -> None:
    q1, k1, q2, k2, v, lam = (x.numpy() if isinstance(x, Tensor) else x for x in call.operands())
    first, second = (slow_map(q, k, **as_numpy(call.restrictions)) for q, k in ((q1, k1), (q2, k2)))
    wanted = torch.from_numpy(slow_read(first - lam * second, v))
    for impl in EXACT:
        assert_close(diff_attention(*call.operands(), **call.restrictions, impl=impl), wanted, **CLOSE)
    maps = diff_attention_maps(call.q1, call.k1, call.q2, call.k2, **call.restrictions)
    assert_close(maps, (torch.from_numpy(first), torch.from_numpy(second)), **CLOSE)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(calls())
def test_ordinary_attention_with_and_without_sink_is_the_loop(call: Call) -> None:
    sink = None if call.sink is None else call.sink.numpy()
    weights = slow_map(call.q1.numpy(), call.k1.numpy(), **as_numpy(call.restrictions), sink=sink)
    wanted = torch.from_numpy(slow_read(weights, call.v.numpy()))
    for impl in EXACT:
        out = attention(call.q1, call.k1, call.v, **call.restrictions, sink=call.sink, impl=impl)
        assert_close(out, wanted, **CLOSE)
    maps = attention_maps(call.q1, call.k1, **call.restrictions, sink=call.sink)
    assert_close(maps, torch.from_numpy(weights), **CLOSE)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(calls())
def test_sdpa_has_the_gradients_of_the_reference(call: Call) -> None:
    def gradients(impl: str) -> list[Tensor]:
        leaves = [x.requires_grad_() for x in call.leaves()]
        out = diff_attention(*call.operands(), **call.restrictions, impl=impl)
        out = out + attention(call.q1, call.k1, call.v, **call.restrictions, sink=call.sink, impl=impl)
        found = torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True, materialize_grads=True)
        assert all(x.isfinite().all() for x in found)
        return list(found)

    assert_close(gradients("sdpa"), gradients("reference"), rtol=1e-9, atol=1e-10)


@every_impl
@pytest.mark.parametrize("heads, groups", [(4, 4), (4, 2), (6, 2), (3, 1)])
def test_output_head_h_reads_group_h_over_n_in_both_maps(heads: int, groups: int, impl: str) -> None:
    at = home(impl)
    q1, q2 = torch.randn(2, 1, heads, 5, at.width, dtype=at.dtype)
    k1, k2 = torch.randn(2, 1, groups, 5, at.width, dtype=at.dtype)
    v = torch.randn(1, groups, 5, 2 * at.width, dtype=at.dtype)
    group = torch.arange(heads) // (heads // groups)
    grouped = diff_attention(q1, k1, q2, k2, v, 0.7, is_causal=True, impl=impl)
    expanded = diff_attention(q1, k1[:, group], q2, k2[:, group], v[:, group], 0.7, is_causal=True, impl=impl)
    assert_close(grouped, expanded, **at.close)


@every_impl
def test_scale_is_one_over_root_d_unless_given(impl: str) -> None:
    q, k, v = torch.randn(1, 1, 3, 16), torch.randn(1, 1, 4, 16), torch.randn(1, 1, 4, 32)
    own = diff_attention(q, k, -q, k, v, 0.2, impl=impl)
    assert_close(own, diff_attention(q, k, -q, k, v, 0.2, scale=0.25, impl=impl))
    assert not torch.allclose(own, diff_attention(q, k, -q, k, v, 0.2, scale=1.0, impl=impl))


@every_impl
@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_scale_of_zero_or_below_keeps_the_future_hidden(scale: float, impl: str) -> None:
    at = home(impl)
    q, k, v = torch.randn(3, 1, 2, 40, at.width, dtype=at.dtype)
    weights = slow_map(q.numpy(), k.numpy(), is_causal=True, scale=scale)
    wanted = torch.from_numpy(slow_read(weights, v.numpy())).to(at.dtype)
    assert_close(attention(q, k, v, is_causal=True, scale=scale, impl=impl), wanted, **at.close)
    assert_close(diff_attention(q, k, q, k, v, -1.0, is_causal=True, scale=scale, impl=impl), 2 * wanted, **at.close)


@every_impl
def test_causal_is_aligned_at_the_bottom_right(impl: str) -> None:
    """Two queries on five keys see four and five keys; torch's own flag would show them one and two."""
    q, k, v = torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 5, 16), torch.eye(5, 16)[None, None]
    out = attention(q, k, v, is_causal=True, impl=impl)[0, 0, :, :5]
    assert_close(out, torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.0], [0.2] * 5]))


@every_impl
def test_window_counts_the_querys_own_position(impl: str) -> None:
    q, k, v = torch.zeros(1, 1, 4, 16), torch.zeros(1, 1, 4, 16), torch.eye(4, 16)[None, None]
    assert_close(attention(q, k, v, is_causal=True, window=1, impl=impl)[0, 0], torch.eye(4, 16))
    two = attention(q, k, v, is_causal=True, window=2, impl=impl)[0, 0]
    assert_close(two[3, :4], torch.tensor([0.0, 0.0, 0.5, 0.5]))


@every_impl
def test_key_lengths_stand_in_for_the_number_of_keys(impl: str) -> None:
    """A static cache of 8 slots holding 5 and 3 keys gives what the keys alone give."""
    at = home(impl)
    q1, q2 = torch.randn(2, 2, 2, 2, at.width, dtype=at.dtype)
    k, v = torch.randn(2, 1, 8, at.width, dtype=at.dtype), torch.randn(2, 1, 8, 2 * at.width, dtype=at.dtype)
    lengths = torch.tensor([5, 3])
    slopes = torch.tensor([0.5, 0.1], dtype=at.dtype)
    out = diff_attention(q1, k, q2, k, v, 0.4, is_causal=True, key_lengths=lengths, window=3, alibi=slopes, impl=impl)
    for b, n in enumerate(lengths.tolist()):
        row = [x[b : b + 1] for x in (q1, k[:, :, :n], q2, k[:, :, :n], v[:, :, :n])]
        alone = diff_attention(*row, 0.4, is_causal=True, window=3, alibi=slopes, impl=impl)
        assert_close(out[b : b + 1], alone, **at.close)


@every_impl
def test_documents_of_a_cache_are_those_of_the_last_keys_before_its_length(impl: str) -> None:
    q, k, v = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 6, 16), torch.eye(6, 16)[None, None]
    documents = torch.tensor([[0, 0, 1, 1, 7, 7]])
    out = attention(q, k, v, documents=documents, key_lengths=torch.tensor([4]), is_causal=True, impl=impl)
    assert_close(out[0, 0, 0, :6], torch.tensor([0.0, 0.0, 0.5, 0.5, 0.0, 0.0]))


@every_impl
@pytest.mark.parametrize("is_causal", [True, False])
def test_alibi_is_minus_the_distance_times_the_slope(is_causal: bool, impl: str) -> None:
    q, k, v = torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 3, 16), torch.eye(3, 16).expand(1, 2, 3, 16)
    slopes = torch.tensor([0.5, 2.0])
    out = attention(q, k, v, is_causal=is_causal, alibi=slopes, impl=impl)
    distance = torch.tensor([1.0, 0.0, np.inf if is_causal else 1.0])
    assert_close(out[0, :, 1, :3], (-slopes[:, None] * distance).softmax(-1))


@every_impl
def test_on_the_first_causal_row_the_result_is_one_minus_lam_times_the_value(impl: str) -> None:
    q1, q2, k = torch.randn(3, 1, 2, 9, 16)
    v = torch.randn(1, 2, 9, 32)
    for lam in (-0.5, 0.0, 1.0, 1.7):
        out = diff_attention(q1, k, q2, k, v, lam, is_causal=True, impl=impl)
        assert_close(out[:, :, 0], (1 - lam) * v[:, :, 0])
    assert not diff_attention(q1, k, q2, k, v, 1.0, is_causal=True, impl=impl)[:, :, 0].any()


@every_impl
def test_a_sink_of_minus_infinity_takes_nothing(impl: str) -> None:
    """However low the other logits are: here below -7000."""
    k, v = torch.randn(1, 2, 4, 16).abs(), torch.randn(1, 2, 4, 16)
    q = torch.full((1, 2, 4, 16), -1e4)
    out = attention(q, k, v, is_causal=True, sink=torch.full((2,), -np.inf), impl=impl)
    assert_close(out, attention(q, k, v, is_causal=True, impl=impl))


@every_impl
@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (2, 1, 1, 1), (1, 2, 3, 1)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_that_is_the_same_for_all_keys_leaves_the_sink_alone(
    kind: str, shape: tuple[int, ...], impl: str
) -> None:
    at = home(impl)
    q, k, v = (torch.randn(2, 2, length, at.width, dtype=at.dtype) for length in (3, 5, 5))
    mask = torch.rand(shape) < 0.7 if kind == "bool" else torch.randn(shape, dtype=at.dtype)
    sink = torch.randn(2, dtype=at.dtype)
    out = attention(q, k, v, attn_mask=mask, sink=sink, impl=impl)
    weights = slow_map(q.numpy(), k.numpy(), attn_mask=mask.numpy(), sink=sink.numpy())
    assert_close(out, torch.from_numpy(slow_read(weights, v.numpy())), **at.close, check_dtype=False)
