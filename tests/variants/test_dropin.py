"""The drop-in layer: rotary, cross-attention, caches, and what it refuses."""

import pytest
import torch
from torch.testing import assert_close

import diffattn
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import build
from diffattn.ops.positions import alibi_slopes, rotary_tables
from diffattn.variants import Layer
from diffattn.variants.base import MixerConfig

VARIANTS = pytest.mark.parametrize("name", ["softmax", "diff_v1", "diff_v2"])


def layer_of(name: str, **options: object) -> Layer:
    return diffattn.layer(name, width=32, heads=4, kv_heads=2, **options)


def tokens_of(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, tokens, 32, generator=torch.Generator().manual_seed(seed))


@VARIANTS
def test_causal_with_rotary_unless_told_otherwise(name: str) -> None:
    layer, x = layer_of(name), tokens_of(2, 6)
    tables = rotary_tables(torch.arange(6), layer.mixer.head_dim)
    y = layer(x)
    assert torch.equal(layer(x, rope=tables, is_causal=True), y)
    assert not torch.allclose(layer(x, rope=False), y)
    assert not torch.allclose(layer(x, is_causal=False), y)


@VARIANTS
def test_a_mask_is_combined_with_the_causal_rule(name: str) -> None:
    layer, x = layer_of(name), tokens_of(2, 6)
    assert_close(layer(x, attn_mask=torch.zeros(6, 6)), layer(x), rtol=0, atol=1e-6)


@VARIANTS
def test_only_differences_of_positions_matter(name: str) -> None:
    layer, x = layer_of(name), tokens_of(2, 6)
    shifted = rotary_tables(torch.arange(6) + 40, layer.mixer.head_dim)
    assert_close(layer(x, rope=shifted), layer(x), rtol=0, atol=1e-5)


@VARIANTS
def test_longer_tables_are_read_by_position(name: str) -> None:
    layer, x = layer_of(name), tokens_of(2, 6)
    tables = rotary_tables(torch.arange(10), layer.mixer.head_dim)
    assert torch.equal(layer(x, rope=tables), layer(x))
    with torch.no_grad():
        cache = layer.new_cache(2, 8)
        steps = [layer(part, rope=tables, cache=cache) for part in (x[:, :4], x[:, 4:])]
    assert_close(torch.cat(steps, dim=1), layer(x), rtol=0, atol=1e-5)


@VARIANTS
def test_slopes_add_the_mask_of_distances_and_rotary_stays(name: str) -> None:
    layer, x, slopes = layer_of(name), tokens_of(2, 6), alibi_slopes(4)
    mask = -slopes[:, None, None] * (torch.arange(6)[:, None] - torch.arange(6))
    for rope in (None, False):
        assert_close(layer(x, rope=rope, alibi=slopes), layer(x, rope=rope, attn_mask=mask), rtol=0, atol=1e-5)
        assert_close(layer.maps(x, rope=rope, alibi=slopes), layer.maps(x, rope=rope, attn_mask=mask))
    with torch.no_grad():
        cache = layer.new_cache(2, 8)
        steps = [layer(part, cache=cache, alibi=slopes) for part in (x[:, :4], x[:, 4:])]
    assert_close(torch.cat(steps, dim=1), layer(x, alibi=slopes), rtol=0, atol=1e-5)


@VARIANTS
def test_rotary_may_turn_a_share_of_the_head(name: str) -> None:
    layer, x = layer_of(name), tokens_of(1, 6)
    y = layer(x, rope=rotary_tables(torch.arange(6), 2))
    assert y.shape == x.shape
    assert not torch.allclose(y, layer(x))


@VARIANTS
def test_cross_attention_has_neither_order_nor_rotary(name: str) -> None:
    layer, x, memory = layer_of(name), tokens_of(2, 3), tokens_of(2, 5, seed=1)
    y = layer(x, memory=memory)
    assert torch.equal(layer(x, memory=memory, is_causal=True), y)
    assert torch.equal(layer(x, memory=memory, is_causal=False), y)
    assert layer.maps(x, memory, is_causal=True)[0, 0, 0].all()
    assert_close(layer(x, memory=memory.flip(1)), y)
    assert_close(layer(x.flip(1), memory=memory).flip(1), y)


@VARIANTS
def test_a_cache_continues_where_it_stopped(name: str) -> None:
    layer, x = layer_of(name), tokens_of(2, 8)
    whole = layer(x)
    cache = layer.new_cache(2, 8)
    steps = [layer(part, cache=cache) for part in (x[:, :3], x[:, 3:7], x[:, 7:])]
    assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-5)
    assert cache.lengths.tolist() == [8, 8]
    assert not any(value.requires_grad for value in cache.state.values())


def test_a_full_cache_says_so() -> None:
    layer = layer_of("diff_v1")
    cache = layer.new_cache(1, 4)
    layer(tokens_of(1, 3), cache=cache)
    with pytest.raises(ValueError, match="the cache holds 4 tokens and 5 are needed"):
        layer(tokens_of(1, 2), cache=cache)
    assert cache.lengths.tolist() == [3]


def test_caches_that_do_not_fit_are_named() -> None:
    layer = layer_of("diff_v1")
    with pytest.raises(ValueError, match="cache: made for a batch of 3, needs 2"):
        layer(tokens_of(2, 3), cache=layer.new_cache(3, 4))
    with pytest.raises(ValueError, match="capacity: got -1"):
        layer.new_cache(2, -1)
    with pytest.raises(ValueError, match="batch: got 0"):
        layer.new_cache(0, 4)


def test_autocast_converts_tokens_of_another_dtype() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer_of("diff_v1")(tokens_of(2, 3).bfloat16()).dtype == torch.bfloat16


@VARIANTS
def test_maps_are_signed_and_sum_as_the_formula_says(name: str) -> None:
    layer, x = layer_of(name).double(), tokens_of(2, 6).double()
    maps = layer.maps(x)
    assert maps.shape == (2, 4, 6, 6)
    lam = layer.mixer.lam(x)
    rows = torch.ones(2, 4, 6, dtype=torch.float64)
    if lam is not None:
        rows = rows - (lam.transpose(1, 2) if lam.ndim else lam)
        assert (maps < 0).any()
    assert_close(maps.sum(-1), rows, rtol=0, atol=1e-12)


def test_seeds_and_layers_start_differently() -> None:
    weights = [layer_of("diff_v1", **at).mixer.q.weight for at in ({}, {"seed": 1}, {"layer": 1, "layers": 2})]
    assert torch.equal(weights[0], layer_of("diff_v1").mixer.q.weight)
    assert not torch.allclose(weights[0], weights[1])
    assert not torch.allclose(weights[0], weights[2])


def test_a_layer_starts_as_in_a_model_of_its_seed() -> None:
    mixer = MixerConfig.from_dict({"name": "diff_v1", "heads": 4, "kv_heads": 2})
    model = build(ModelConfig(width=32, layers=2, ffn_width=8, mixer=mixer), seed=3)
    layer = layer_of("diff_v1", layer=1, layers=2, seed=3)
    for name, value in layer.mixer.state_dict().items():
        assert torch.equal(model.blocks()[1].mixer.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.zeros(2, 5, 16)}, r"x must be \[batch, tokens, 32\], got \[2, 5, 16\]"),
        ({"x": torch.zeros(5, 32)}, r"x must be \[batch, tokens, 32\]"),
        ({"memory": torch.zeros(2, 5, 16)}, r"memory must be \[2, tokens, 32\], got \[2, 5, 16\]"),
        ({"memory": torch.zeros(1, 5, 32)}, r"memory must be \[2, tokens, 32\], got \[1, 5, 32\]"),
        ({"memory": torch.zeros(2, 5, 32), "rope": (torch.ones(5, 2),) * 2}, "cross-attention has no rotary"),
        ({"memory": torch.zeros(2, 5, 32), "alibi": torch.ones(4)}, "cross-attention has no distances"),
        ({"alibi": torch.ones(8)}, r"alibi: got .*\[8\]"),
        ({"memory": torch.zeros(2, 5, 32).double()}, "memory: got torch.float64, needs torch.float32"),
        ({"x": torch.zeros(2, 5, 32).double()}, "x: got torch.float64, needs torch.float32"),
        ({"x": torch.zeros(2, 5, 32).long()}, "x: got torch.int64, needs torch.float32"),
        ({"rope": True}, "rope: got True, needs None"),
        ({"rope": (torch.zeros(5, 2),)}, "rope: got tuple of 1, needs .* a pair of tensors"),
        ({"is_causal": None}, "is_causal: got None, needs True or False"),
        ({"rope": (torch.zeros(3, 2), torch.zeros(3, 2))}, "cos, sin"),
        ({"window": 2, "is_causal": False}, "window"),
        ({"attn_mask": torch.ones(2, 3, 5, 5, dtype=torch.bool)}, "attn_mask"),
    ],
)
def test_what_does_not_fit_is_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer_of("diff_v1")(**({"x": torch.zeros(2, 5, 32)} | arguments))


def test_width_and_heads_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"diff_v1: width 100 does not divide by 6 \(3 output heads"):
        diffattn.layer("diff_v1", width=100, heads=3)
    with pytest.raises(ValueError, match="dropout inside attention maps has no published meaning"):
        diffattn.layer("softmax", width=32, heads=4, dropout=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": -1}, "layer: got -1, needs a whole number of at least 0"),
        ({"layer": 1.5}, "layer: got 1.5, needs a whole number"),
        ({"layers": 0}, "layers: got 0, needs a whole number of at least 1"),
        ({"width": 0}, "width: got 0, needs a whole number of at least 1"),
        ({"context": 0}, "context: got 0, needs a whole number of at least 1"),
        ({"name": None}, "there is no variant None"),
        ({"norm_eps": "small"}, "norm_eps: got 'small', needs a finite number above 0"),
        ({"lambda_init": "small"}, "lambda_init: got 'small', needs a finite number"),
    ],
)
def test_places_and_numbers_that_make_no_sense_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        diffattn.layer(**({"name": "diff_v1", "width": 32, "heads": 4} | options))


def test_the_number_of_layers_may_be_left_out() -> None:
    assert layer_of("diff_v1", layer=3).mixer.lambda_init == pytest.approx(0.8 - 0.6 * 0.4065697)
