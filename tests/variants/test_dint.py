"""The integral part: the running mean by a slow loop, rows that sum to 1, decoding over documents and padding."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import support.mixers as small
from diffattn.variants.base import Mixer, Where
from support.attention_loop import as_numpy, slow_map, slow_read
from support.implementations import RUNNING, home

EXACT = {"rtol": 0.0, "atol": 1e-10}
"""Float64 rounding of a norm of sums of order 1."""

PACKED = [
    [4, 4, 4, 1, 1, 1, 1, 1, 0],
    [-1, -1, 0, 0, 0, 0, 0, 0, 0],
    [-1, 7, 7, -1, -1, 7, 7, 2, 2],
    [0, 0, 0, 0, 0, 0, -1, -1, -1],
]
"""Rows of packed documents, padding on the left, in the middle of a document, and on the right."""


def slow_mean(x: np.ndarray, documents: list[list[int]]) -> np.ndarray:
    """Mean of x [B, H, T, E] over the tokens of the same document up to each; 0 at padding."""
    found = np.zeros_like(x)
    for b, ids in enumerate(documents):
        for t, own in enumerate(ids):
            if own >= 0:
                found[b, :, t] = np.mean([x[b, :, s] for s in range(t + 1) if ids[s] == own], axis=0)
    return found


def slow_layer(mixer: Mixer, x: Tensor, where: Where, documents: list[list[int]]) -> Tensor:
    q, k, v = (part.detach().numpy() for part in mixer.read(x, where, None))
    o1, o2 = (slow_read(slow_map(q[:, c::2], k[:, c::2], **as_numpy(where.restrictions())), v) for c in (0, 1))
    lam = mixer.lam(x).detach().numpy()
    heads = o1 - lam * o2 + lam * slow_mean(o1, documents)
    size = np.sqrt((heads**2).mean(axis=-1, keepdims=True) + 1e-5)
    heads = (1 - mixer.lambda_init) * mixer.norm_weight.detach().numpy() * heads / size
    heads = heads.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
    return torch.from_numpy(heads @ mixer.o.weight.detach().numpy().T)


def packed(mixer: Mixer, dtype: torch.dtype = torch.float64) -> Where:
    return small.where_of(mixer, 9, dtype, documents=torch.tensor(PACKED))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (2, 1)])
def test_the_formula_with_documents_and_padding(heads: int, kv_heads: int) -> None:
    mixer = small.stirred_mixer_of("dint", heads=heads, kv_heads=kv_heads)
    x = small.tokens_of(4, 9)
    assert_close(mixer(x, packed(mixer)), slow_layer(mixer, x, packed(mixer), PACKED), **EXACT)


@pytest.mark.parametrize("tokens", [1, 2, 12])
def test_the_formula_on_one_document(tokens: int) -> None:
    mixer = small.stirred_mixer_of("dint")
    x, where = small.tokens_of(2, tokens), small.where_of(mixer, tokens)
    assert_close(mixer(x, where), slow_layer(mixer, x, where, [[0] * tokens] * 2), **EXACT)


@pytest.mark.parametrize("impl", RUNNING)
def test_rows_of_the_effective_map_sum_to_one(impl: str) -> None:
    mixer = small.stirred_mixer_of("dint", impl=impl)
    x = small.tokens_of(4, 9, home(impl).dtype)
    sums = mixer.maps(x, packed(mixer, home(impl).dtype)).sum(-1)
    real = (torch.tensor(PACKED) >= 0)[:, None].expand_as(sums)
    assert_close(sums, real.to(sums.dtype), **home(impl).close)


def test_the_effective_map_is_what_multiplies_the_values() -> None:
    mixer = small.stirred_mixer_of("dint", norm="none")
    x = small.tokens_of(4, 9)
    _, _, v = mixer.read(x, packed(mixer), None)
    heads = mixer.maps(x, packed(mixer)) @ v.repeat_interleave(2, dim=1)
    assert_close(mixer.write(heads * (1 - mixer.lambda_init)), mixer(x, packed(mixer)), **EXACT)


def test_the_first_token_reads_its_own_value() -> None:
    mixer = small.stirred_mixer_of("dint", kv_heads=4, norm="none", lam="fixed", lambda_init=0.3)
    x = small.tokens_of(2, 3)
    assert_close(mixer(x, small.where_of(mixer, 3))[:, 0], mixer.o(0.7 * mixer.v(x[:, 0])), **EXACT)


@pytest.mark.parametrize("impl", RUNNING)
def test_no_token_sees_the_future_or_another_document(impl: str) -> None:
    mixer, at = small.stirred_mixer_of("dint", impl=impl), home(impl)
    x = small.tokens_of(4, 9, at.dtype).requires_grad_()
    documents = torch.tensor(PACKED)
    for t in range(9):
        (slope,) = torch.autograd.grad(mixer(x, packed(mixer, at.dtype))[:, t].sum(), x)
        may_see = (documents == documents[:, t : t + 1]) & (documents >= 0) & (torch.arange(9) <= t)
        seen = slope.abs().amax(-1)
        # What other documents add to a running sum and subtract again leaves rounding of float64.
        assert seen[~may_see].amax() < 1e-12
        assert (seen[may_see] > 1e-6).all()


def test_early_documents_leave_no_trace_in_float32() -> None:
    """Large early outputs would swallow the small ones of a later document in a running sum of float32."""
    mixer = small.stirred_mixer_of("dint", torch.float32, norm="none")
    x = small.tokens_of(1, 9, torch.float32)
    x[:, :5] *= 1e6
    together = mixer(x, small.where_of(mixer, 9, documents=torch.tensor([[0] * 5 + [1] * 4])))
    assert_close(together[:, 5:], mixer(x[:, 5:], small.where_of(mixer, 4)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("steps", [[9], [1] * 9, [4, 5], [2, 3, 1, 3]], ids=str)
def test_any_division_into_calls_gives_the_same(steps: list[int]) -> None:
    mixer = small.stirred_mixer_of("dint")
    x, capacity = small.tokens_of(4, 9), 11
    documents = torch.nn.functional.pad(torch.tensor(PACKED), (0, capacity - 9), value=-1)
    state, found, start = mixer.new_state(4, capacity), [], 0
    with torch.no_grad():
        for step in steps:
            where = Where(
                positions=small.tables_of(mixer, torch.arange(start, start + step)),
                key_lengths=torch.full((4,), start + step),
                documents=documents,
            )
            found.append(mixer(x[:, start : start + step], where, state))
            start += step
        assert_close(torch.cat(found, dim=1), mixer(x, packed(mixer)), **EXACT)


def test_decoding_remembers_a_sum_and_a_count_besides() -> None:
    state = small.mixer_of("dint", torch.bfloat16).new_state(3, 10)
    assert state.keys() - {"k", "v"} == {"sum", "count", "document"}
    assert state["sum"].shape == (3, 4, 1, 8)
    assert state["sum"].dtype == state["count"].dtype == torch.float32


def test_costs_two_attentions_and_the_cache_of_version_1() -> None:
    ours, v1 = (small.config_of(name, "reference").cost(small.SITE) for name in ("dint", "diff_v1"))
    assert (ours.parameters, ours.cache_bytes, ours.flops_algebra) == (v1.parameters, v1.cache_bytes, v1.flops_algebra)
    # One more product with V, of 4 heads of 8, in forward and backward over 16 keys.
    assert ours.flops_executed - v1.flops_executed == 3 * 2 * 4 * 8 * 16


@pytest.mark.parametrize(
    "given",
    [
        {"window": 3},
        {"attn_mask": torch.ones(6, 6, dtype=torch.bool)},
        {"is_causal": False},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_the_mean_would_undo_is_refused(given: dict[str, Any]) -> None:
    mixer = small.mixer_of("dint")
    for call in (mixer, mixer.maps):
        with pytest.raises(ValueError, match=next(iter(given))):
            call(small.tokens_of(2, 6), small.where_of(mixer, 6, **given))
