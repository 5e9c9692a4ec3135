"""Attentions that are written differently and must be the same function under converted weights."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import support.mixers as small
from diffattn.variants.base import Mixer, Where

EXACT = {"rtol": 1e-10, "atol": 1e-10}
"""Float64 rounding of sums of order 1 to 10 in another order."""

shapes = pytest.mark.parametrize(("heads", "kv_heads", "tokens"), [(4, 4, 7), (4, 2, 9), (4, 1, 5), (2, 1, 12)])


def restricted(mixer: Mixer, tokens: int) -> Where:
    """Rotary, slopes for each output head, and in the second sequence padding and two documents."""
    second = [-1] * (tokens // 4) + [0] * (tokens // 2)
    documents = torch.tensor([[0] * tokens, second + [1] * (tokens - len(second))])
    slopes = torch.linspace(0.0, 0.5, mixer.heads, dtype=torch.float64)
    return small.where_of(mixer, tokens, documents=documents, alibi=slopes)


def assert_same_function(one: Mixer, other: Mixer, tokens: int, *parts: str) -> None:
    """Outputs, and gradients of the tokens and of the parameters named."""
    x = small.tokens_of(2, tokens)
    found, expected = (small.gradients(mixer, x, restricted(mixer, tokens)) for mixer in (one, other))
    for part in ("output", "x", *parts):
        assert_close(found[part], expected[part], **EXACT, msg=lambda text, part=part: f"{part}: {text}")


def first_maps(pairs: Mixer, weight: Tensor) -> Tensor:
    """The rows of heads 2i of a weight that holds two maps."""
    return weight.detach().unflatten(0, (-1, 2, pairs.head_dim))[:, 0].flatten(0, 1)


def paired(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """A weight that holds two maps, from theirs."""
    return torch.stack([weight.detach().unflatten(0, (-1, dim)) for weight in (first, second)], 1).flatten(0, 2)


def load(mixer: Mixer, source: Mixer, **changed: Tensor) -> None:
    """Give a layer the source's weights, except those of the matrices named here; no weight may be left out."""
    weights = {name: value for name, value in source.state_dict().items() if name in mixer.state_dict()}
    weights.update((f"{name}.weight", value.detach()) for name, value in changed.items())
    mixer.load_state_dict(weights)


@shapes
@pytest.mark.parametrize("c", [0.5, -0.5, 0.3])
def test_heads_with_one_value_can_subtract(heads: int, kv_heads: int, tokens: int, c: float) -> None:
    tied, fixed = (
        small.stirred_mixer_of(name, heads=heads, kv_heads=kv_heads, c=c, **options)
        for name, options in (("tied_value", {}), ("diff_fixed", {"norm": "none"}))
    )
    load(tied, fixed, o=(1 - c) * fixed.o.weight)
    assert_same_function(tied, fixed, tokens, "q.weight", "k.weight", "v.weight")


@shapes
@pytest.mark.parametrize("norm", ["weight", "none"])
def test_the_difference_may_be_taken_behind_the_values(heads: int, kv_heads: int, tokens: int, norm: str) -> None:
    sizes = {"heads": heads, "kv_heads": kv_heads, "norm": norm}
    factored, v1 = (small.stirred_mixer_of(name, **sizes) for name in ("diff_factored", "diff_v1"))
    assert_same_function(factored, v1, tokens, *(name for name, _ in v1.named_parameters()))


@shapes
def test_without_lambda_v1_is_attention_with_wide_values(heads: int, kv_heads: int, tokens: int) -> None:
    """As `softmax` has no wide values: its heads are as wide as V1's values, and only the first half meets a key."""
    sizes = {"heads": heads, "kv_heads": kv_heads}
    v1 = small.stirred_mixer_of("diff_v1", lam="fixed", lambda_init=0.0, norm="none", **sizes)
    softmax = small.stirred_mixer_of("softmax", head_dim=2 * v1.head_dim, **sizes)
    widened = {}
    # Twice as wide a head divides by sqrt(2) more.
    for name, factor in (("q", math.sqrt(2)), ("k", 1.0)):
        rows = first_maps(v1, getattr(v1, name).weight).unflatten(0, (-1, v1.head_dim))
        widened[name] = factor * torch.cat((rows, torch.zeros_like(rows)), 1).flatten(0, 1)
    load(softmax, v1, **widened)
    softmax.head_dim = v1.head_dim  # The tables' width: zeros need no rotation.
    assert_same_function(v1, softmax, tokens, "v.weight", "o.weight")


@pytest.mark.parametrize(
    ("heads", "kv_heads", "share"), [(4, 4, 1), (4, 2, 1), (4, 1, 1), (4, 4, 2), (4, 2, 2), (4, 1, 2), (4, 1, 4)]
)
@pytest.mark.parametrize("lam", ["exp", "per_head"])
def test_shared_noise_heads_are_v1_with_repeated_ones(heads: int, kv_heads: int, share: int, lam: str) -> None:
    sizes = {"heads": heads, "kv_heads": kv_heads, "lam": lam}
    grouped, v1 = small.stirred_mixer_of("grouped_diff", share=share, **sizes), small.mixer_of("diff_v1", **sizes)
    dim = grouped.head_dim

    def repeated(weight: Tensor, times: int) -> Tensor:
        return weight.unflatten(0, (-1, dim)).repeat_interleave(times, 0).flatten(0, 1)

    load(
        v1,
        grouped,
        q=paired(grouped.q.weight, repeated(grouped.q2.weight, share), dim),
        k=paired(grouped.k.weight, repeated(grouped.k2.weight, share if kv_heads == heads else 1), dim),
    )
    assert_same_function(grouped, v1, 9, "v.weight", "o.weight", "norm_weight")
    x = small.tokens_of(2, 9)
    assert_close(grouped.maps(x, restricted(grouped, 9)), v1.maps(x, restricted(v1, 9)), **EXACT)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_mask_of_its_own_for_each_head_reaches_shared_noise_heads(kv_heads: int) -> None:
    grouped = small.stirred_mixer_of("grouped_diff", kv_heads=kv_heads, norm="none")
    mask = torch.rand(4, 6, 6, generator=torch.Generator().manual_seed(0)) > 0.3
    x, where = small.tokens_of(1, 6), small.where_of(grouped, 6, attn_mask=mask)
    v = grouped.v(x).unflatten(-1, (kv_heads, -1)).transpose(1, 2).repeat_interleave(4 // kv_heads, 1)
    expected = (1 - grouped.lambda_init) * grouped.maps(x, where) @ v
    assert_close(grouped(x, where), grouped.write(expected), **EXACT)


@shapes
def test_two_equal_temperatures_leave_nothing(heads: int, kv_heads: int, tokens: int) -> None:
    mixer = small.stirred_mixer_of("diff_temperature", heads=heads, kv_heads=kv_heads, norm="none")
    mixer.tau.data.fill_(1.0)
    y = mixer(small.tokens_of(2, tokens), restricted(mixer, tokens))
    assert_close(y, torch.zeros_like(y), **EXACT)


@shapes
@pytest.mark.parametrize("tau", [-1.0, 0.0, 0.5, 3.0])
def test_a_difference_of_temperatures_sums_to_0(heads: int, kv_heads: int, tokens: int, tau: float) -> None:
    mixer = small.stirred_mixer_of("diff_temperature", heads=heads, kv_heads=kv_heads)
    mixer.tau.data.fill_(tau)
    x = small.tokens_of(2, tokens)
    maps = mixer.maps(x, restricted(mixer, tokens))
    assert maps.abs().max() > 0.01
    assert_close(maps.sum(-1), torch.zeros(2, heads, tokens, dtype=torch.float64), **EXACT)
    # So a token that sees one key reads nothing, and the norm leaves nothing of nothing.
    first = mixer(x, small.where_of(mixer, tokens))[:, 0]
    assert_close(first, torch.zeros_like(first), **EXACT)


@shapes
def test_the_uniform_map_is_v1s_with_zero_second_keys(heads: int, kv_heads: int, tokens: int) -> None:
    sizes = {"heads": heads, "kv_heads": kv_heads}
    uniform, v1 = (small.stirred_mixer_of(name, **sizes) for name in ("diff_uniform", "diff_v1"))
    q, k = first_maps(v1, v1.q.weight), first_maps(v1, v1.k.weight)
    load(uniform, v1, q=q, k=k)
    load(v1, v1, k=paired(k, torch.zeros_like(k), v1.head_dim))
    assert_same_function(uniform, v1, tokens, "v.weight", "o.weight", "norm_weight", "lambda_q1")


@pytest.mark.parametrize("tokens", [1, 6])
def test_the_uniform_map_is_uniform_without_slopes(tokens: int) -> None:
    mixer = small.stirred_mixer_of("diff_uniform")
    _, second = mixer.branches(small.tokens_of(2, tokens), small.where_of(mixer, tokens, window=3))
    seen = torch.ones(tokens, tokens, dtype=torch.float64).tril().triu(-2)
    assert_close(second.map, (seen / seen.sum(-1, keepdim=True)).expand(2, 4, -1, -1), **EXACT)


@shapes
@pytest.mark.parametrize("c", [0.5, -0.5, 2.0])
def test_a_constant_is_v1_with_a_fixed_lambda(heads: int, kv_heads: int, tokens: int, c: float) -> None:
    sizes = {"heads": heads, "kv_heads": kv_heads}
    fixed = small.stirred_mixer_of("diff_fixed", c=c, **sizes)
    v1 = small.stirred_mixer_of("diff_v1", lam="fixed", lambda_init=c, **sizes)
    assert_same_function(fixed, v1, tokens, *(name for name, _ in v1.named_parameters()))


@shapes
@pytest.mark.parametrize("without", [True, False], ids=["rank part 0", "rank part"])
def test_shared_projections_are_v1s_and_without_rank_part_its_maps_are_equal(
    heads: int, kv_heads: int, tokens: int, without: bool
) -> None:
    sizes = {"heads": heads, "kv_heads": kv_heads}
    shared, v1 = small.stirred_mixer_of("shared_diff", **sizes), small.mixer_of("diff_v1", **sizes)
    whole = {}
    for name in ("q", "k"):
        maps = []
        for number in (1, 2):
            down, up = (getattr(shared, f"{name}{number}_{way}").weight for way in ("down", "up"))
            if without:
                up.data.zero_()
            maps.append(getattr(shared, name).weight + up @ down)
        whole[name] = paired(*maps, shared.head_dim)
    load(v1, shared, **whole)
    assert_same_function(shared, v1, tokens, "v.weight", "o.weight", "norm_weight", "lambda_q1")
    first, second = v1.branches(small.tokens_of(2, tokens), restricted(v1, tokens))
    assert torch.allclose(first.map, second.map, **EXACT) == without
