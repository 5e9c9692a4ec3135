"""Learned combinations of all heads' maps, linear and not: the formulas, and what they are cases of."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import support.mixers as small
from diffattn.ops import rows
from diffattn.variants.base import Mixer, Where
from support.attention_loop import as_numpy, slow_map, slow_read
from support.flops import counted_flops

EXACT = {"rtol": 0.0, "atol": 1e-12}
"""Float64 rounding of sums of order 1."""

shapes = pytest.mark.parametrize(
    ("heads", "kv_heads", "tokens"), [(4, 4, 7), (4, 2, 9), (8, 2, 5), (2, 1, 1)], ids=lambda n: str(n)
)


def slow_maps(mixer: Mixer, x: Tensor, where: Where) -> tuple[np.ndarray, np.ndarray]:
    """All heads' maps and the values, by loops."""
    q, k, v = (part.detach().numpy() for part in mixer.read(x, where, None))
    return slow_map(q, k, **as_numpy(where.restrictions())), v


def written(mixer: Mixer, weights: np.ndarray, v: np.ndarray) -> Tensor:
    heads = slow_read(weights, v).transpose(0, 2, 1, 3)
    return torch.from_numpy(heads.reshape(*heads.shape[:2], -1) @ mixer.o.weight.detach().numpy().T)


def restricted(mixer: Mixer, tokens: int) -> Where:
    """Causal, a packed and a left-padded row, and a float mask."""
    split, padding = tokens // 2, tokens // 3
    documents = torch.tensor([[3] * split + [1] * (tokens - split), [-1] * padding + [0] * (tokens - padding)])
    bias = torch.randn(tokens, tokens, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return small.where_of(mixer, tokens, documents=documents, attn_mask=bias)


@shapes
@pytest.mark.parametrize("rows_sum_to_one", [False, True])
def test_the_formula_of_the_mixture(heads: int, kv_heads: int, tokens: int, rows_sum_to_one: bool) -> None:
    options = {"heads": heads, "kv_heads": kv_heads, "start": "random", "rows_sum_to_one": rows_sum_to_one}
    mixer = small.stirred_mixer_of("map_mix", **options)
    x, where = small.tokens_of(2, tokens), restricted(mixer, tokens)
    maps, v = slow_maps(mixer, x, where)
    mix = mixer.mix.detach().numpy()
    if rows_sum_to_one:
        mix = mix + (1 - mix.sum(axis=1, keepdims=True)) / heads
    mixed = np.zeros_like(maps)
    for i in range(heads):
        for j in range(heads):
            mixed[:, i] += mix[i, j] * maps[:, j]
    assert_close(mixer(x, where), written(mixer, mixed, v), rtol=0, atol=1e-10)
    assert_close(mixer.maps(x, where), torch.from_numpy(mixed), rtol=0, atol=1e-10)


@shapes
def test_the_formula_of_the_network(heads: int, kv_heads: int, tokens: int) -> None:
    mixer = small.stirred_mixer_of("map_mix_mlp", heads=heads, kv_heads=kv_heads)
    x, where = small.tokens_of(2, tokens), restricted(mixer, tokens)
    maps, v = slow_maps(mixer, x, where)
    first, last = mixer.mix_in.detach().numpy(), mixer.mix_out.detach().numpy()
    gelu = np.vectorize(lambda a: a * (1 + math.erf(a / math.sqrt(2))) / 2)
    mixed = np.zeros_like(maps)
    for b, t, s in np.ndindex(2, tokens, tokens):
        mixed[b, :, t, s] = maps[b, :, t, s] + last @ gelu(first @ maps[b, :, t, s])
    assert_close(mixer(x, where), written(mixer, mixed, v), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["map_mix", "map_mix_mlp"])
def test_starts_as_softmax(name: str) -> None:
    mixer, softmax = small.mixer_of(name), small.mixer_of("softmax")
    x = small.tokens_of(2, 9)
    assert_close(mixer(x, restricted(mixer, 9)), softmax(x, restricted(softmax, 9)), **EXACT)


def as_pairs(pairs: Mixer, c: float) -> Mixer:
    """A `map_mix` of 2H heads of D that computes the same as H heads of 2D with A1 - c A2.

    Their queries (group, place in the group, map) become (group, map, place), since heads of one group are neighbours
    and the two maps read different keys. The two heads of a pair both hold the difference of its two maps, and read
    the first and the second half of its value: which lie in v's weight as two value heads of D already do.
    """
    heads, groups, dim = pairs.heads, pairs.groups, pairs.head_dim
    place = heads // groups
    mixer = small.mixer_of("map_mix", heads=2 * heads, kv_heads=2 * groups, head_dim=dim)
    order = torch.arange(2 * heads).view(groups, place, 2).mT.flatten()
    difference = torch.tensor([[1.0, -c], [1.0, -c]], dtype=torch.float64).kron(torch.eye(place))
    with torch.no_grad():
        mixer.q.weight.copy_(pairs.q.weight.unflatten(0, (-1, dim))[order].flatten(0, 1))
        mixer.k.weight.copy_(pairs.k.weight)
        mixer.v.weight.copy_(pairs.v.weight)
        mixer.o.weight.copy_(pairs.o.weight.unflatten(1, (-1, dim))[:, order].flatten(1) * (1 - c))
        mixer.mix.copy_(torch.block_diag(*[difference] * groups))
    return mixer


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_pairs_of_one_and_minus_lambda_are_the_difference_of_maps(kv_heads: int) -> None:
    difference = small.mixer_of("diff_fixed", kv_heads=kv_heads, c=0.3, norm="none")
    mixer = as_pairs(difference, 0.3)
    x = small.tokens_of(2, 9)
    assert_close(mixer(x, restricted(mixer, 9)), difference(x, restricted(difference, 9)), **EXACT)
    # And of each pair of output heads both hold the map of the pair.
    maps, expected = mixer.maps(x, restricted(mixer, 9)), difference.maps(x, restricted(difference, 9))
    grouped = maps.unflatten(1, (kv_heads, 2, -1))
    for half in (0, 1):
        assert_close(grouped[:, :, half].flatten(1, 2), expected, **EXACT)


@pytest.mark.parametrize(
    ("start", "expected"), [("identity", torch.eye(4)), ("uniform", torch.full((4, 4), 0.25))], ids=lambda x: str(x)[:8]
)
def test_the_report_reads_the_matrix_as_it_is_applied(start: str, expected: Tensor) -> None:
    for rows_sum_to_one in (False, True):
        mixer = small.mixer_of("map_mix", start=start, rows_sum_to_one=rows_sum_to_one)
        assert_close(mixer.mixing(), expected.double(), **EXACT)
    assert small.mixer_of("softmax").mixing() is None


def test_a_random_start_is_scaled_by_the_number_of_heads() -> None:
    mixer = small.mixer_of("map_mix", heads=32, kv_heads=1, start="random")
    assert mixer.mix.detach().square().sum(-1).mean() == pytest.approx(1, rel=0.2)


def test_rows_can_be_held_to_a_sum_of_one_where_they_sum_to_zero() -> None:
    mixer = small.mixer_of("map_mix", rows_sum_to_one=True)
    mixer.mix.data = torch.tensor([[1.0, -1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 2, -3]]).double()
    assert_close(mixer.mixing()[1:3], torch.full((2, 4), 0.25).double(), **EXACT)
    x, where = small.tokens_of(2, 6), small.where_of(mixer, 6)
    assert_close(mixer.maps(x, where).sum(-1), torch.ones(2, 4, 6).double(), **EXACT)
    assert all(value.isfinite().all() for value in small.gradients(mixer, x, where).values())


@pytest.mark.parametrize("name", ["map_mix", "map_mix_mlp"])
def test_long_sequences_are_read_in_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = small.stirred_mixer_of(name)
    x, where = small.tokens_of(1, 40), small.where_of(mixer, 40)
    whole = small.gradients(mixer, x, where)
    monkeypatch.setattr(rows, "ELEMENTS", 4 * 40 * 16)
    for part, value in small.gradients(mixer, x, where).items():
        assert_close(value, whole[part], rtol=1e-10, atol=1e-11)
    x.requires_grad_()
    cost = small.config_of(name).cost(dataclasses.replace(small.SITE, context=40))
    assert counted_flops(lambda: mixer(x, where)) == 40 * cost.flops_executed > 40 * cost.flops_algebra


def test_an_unknown_start_is_refused() -> None:
    with pytest.raises(ValueError, match="start: got 'ones', needs one of identity, uniform, random"):
        small.config_of("map_mix", start="ones").build(small.SITE)
