"""Differential attention, version 2: the published formula."""

import pytest
import torch
from torch.testing import assert_close

import support.mixers as small
from support.formulas import causal_map, head


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_the_published_formula(kv_heads: int) -> None:
    mixer = small.mixer_of("diff_v2", kv_heads=kv_heads)
    x, dim = small.tokens_of(1, 7)[0], 8
    q, k, v = mixer.q(x), mixer.k(x), mixer.v(x)
    lam = torch.sigmoid(x @ mixer.lambda_proj.weight.T)
    heads = []
    for h in range(4):
        g = h // (4 // kv_heads)
        first, second = (causal_map(head(q, 2 * h + c, dim), head(k, g, dim)) @ head(v, g, dim) for c in (0, 1))
        heads.append(first - lam[:, h : h + 1] * second)
    expected = mixer.o(torch.cat(heads, dim=-1))
    assert_close(mixer(x[None], small.where_of(mixer, 7))[0], expected, rtol=0, atol=1e-12)


def test_pairs_are_neighbours_and_not_halves() -> None:
    mixer = small.mixer_of("diff_v2")
    x, where = small.tokens_of(1, 7), small.where_of(mixer, 7)
    y = mixer(x, where)
    # Queries in the order (first of each head, then second of each head): what a split in halves would read.
    halves = mixer.q.weight.detach().unflatten(0, (4, 2, 8)).transpose(0, 1).flatten(0, 2)
    mixer.q.weight.data = halves
    assert (mixer(x, where) - y).abs().max() > 0.1


def test_lambda_follows_the_token() -> None:
    mixer = small.mixer_of("diff_v2")
    x = small.tokens_of(2, 5)
    lam = mixer.lam(x)
    assert lam.shape == (2, 5, 4)
    assert ((lam > 0) & (lam < 1)).all()
    assert lam.std() > 0.05


def test_lambda_is_float32_whatever_is_stored() -> None:
    assert small.mixer_of("diff_v2", torch.bfloat16).lam(small.tokens_of(1, 2, torch.bfloat16)).dtype == torch.float32


def test_the_cache_equals_the_baselines() -> None:
    ours, baselines = (small.mixer_of(name).new_state(2, 10) for name in ("diff_v2", "softmax"))
    assert {name: value.shape for name, value in ours.items()} == {n: value.shape for n, value in baselines.items()}


def test_heads_need_not_fill_the_width() -> None:
    mixer = small.mixer_of("diff_v2", heads=3, kv_heads=1, head_dim=10)
    assert mixer.q.weight.shape == (60, 32)
    assert mixer.o.weight.shape == (32, 30)
    assert mixer(small.tokens_of(2, 5), small.where_of(mixer, 5)).shape == (2, 5, 32)


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 2), (2, 4)])
def test_pairs_that_straddle_key_heads_are_refused(heads: int, kv_heads: int) -> None:
    with pytest.raises(ValueError, match="kv_heads must divide heads"):
        small.config_of("diff_v2", heads=heads, kv_heads=kv_heads, head_dim=8).build(small.SITE)
