"""Differential attention, version 1: the paper's formula and its options."""

import math

import pytest
import torch
from torch.testing import assert_close

import support.mixers as small
from diffattn.variants.base import Draw, Site
from support.formulas import causal_map, head, rms_norm

VECTORS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("norm", ["weight", "plain", "none"])
def test_the_papers_formula(kv_heads: int, norm: str) -> None:
    mixer = small.mixer_of("diff_v1", kv_heads=kv_heads, norm=norm)
    for name, parameter in mixer.named_parameters():
        if name.startswith(("lambda", "norm")):
            parameter.data = parameter.data + Draw(1).normal(name, parameter.shape, 0.3)
    x, dim = small.tokens_of(1, 7)[0], 4
    q, k, v = mixer.q(x), mixer.k(x), mixer.v(x)
    start = 0.8 - 0.6 * math.exp(-0.3 * 1)
    q1, k1, q2, k2 = (getattr(mixer, name) for name in VECTORS)
    lam = (q1 @ k1).exp() - (q2 @ k2).exp() + start
    heads = []
    for h in range(4):
        g = h // (4 // kv_heads)
        first = causal_map(head(q, 2 * h, dim), head(k, 2 * g, dim))
        second = causal_map(head(q, 2 * h + 1, dim), head(k, 2 * g + 1, dim))
        read = (first - lam * second) @ head(v, g, 2 * dim)
        if norm != "none":
            read = rms_norm(read, mixer.norm_weight if norm == "weight" else 1.0)
        heads.append((1 - start) * read)
    expected = mixer.o(torch.cat(heads, dim=-1))
    assert_close(mixer(x[None], small.where_of(mixer, 7))[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("layer", "expected"), [(0, 0.2), (1, 0.8 - 0.6 * math.exp(-0.3)), (27, 0.79982)])
def test_lambda_starts_by_depth_from_zero(layer: int, expected: float) -> None:
    config = small.config_of("diff_v1")
    start = config.start_of_lambda(Site(width=32, layer=layer, layers=28, context=16))
    assert start == (expected if layer == 0 else pytest.approx(expected, abs=1e-5))


@pytest.mark.parametrize("constant", [0.8, 0.5])
def test_a_constant_start_is_also_in_the_gain(constant: float) -> None:
    mixer = small.mixer_of("diff_v1", lambda_init=constant, lam="fixed", norm="plain", norm_eps=1e-12)
    assert mixer.lam(small.tokens_of(1, 1)) == constant
    mixer.o.weight.data = torch.eye(32, dtype=torch.float64)
    heads = mixer(small.tokens_of(1, 5), small.where_of(mixer, 5)).unflatten(-1, (4, 8))
    assert_close(heads.square().mean(-1).sqrt(), torch.full((1, 5, 4), 1 - constant, dtype=torch.float64))


def test_a_fresh_lambda_stays_near_its_start() -> None:
    site = Site(width=128, layer=0, layers=1, context=16)
    config = small.config_of("diff_v1", heads=1, kv_heads=1, head_dim=64)
    x = torch.zeros(1, 1, 128)
    for seed in range(200):
        mixer = config.build(site)
        mixer.init_weights(Draw(seed))
        # Each product of two N(0, 0.1) vectors of 64 has deviation 0.08, so the difference one of 0.11.
        assert abs(mixer.lam(x).item() - 0.2) < 0.6


@pytest.mark.parametrize("kind", ["exp", "scalar", "per_head", "sigmoid", "fixed"])
def test_every_form_of_lambda_starts_at_its_start(kind: str) -> None:
    mixer = small.mixer_of("diff_v1", lam=kind, lambda_init=0.3)
    if kind == "exp":
        for name in VECTORS:
            getattr(mixer, name).data.zero_()
    lam = mixer.lam(small.tokens_of(1, 1))
    assert lam.shape == ((4,) if kind == "per_head" else ())
    assert_close(lam, torch.full_like(lam, 0.3), rtol=0, atol=1e-7)
    count = {"exp": 4 * 4, "scalar": 1, "per_head": 4, "sigmoid": 1, "fixed": 0}[kind]
    assert sum(p.numel() for name, p in mixer.named_parameters() if name.startswith("lambda")) == count


@pytest.mark.parametrize("kind", ["scalar", "per_head", "sigmoid"])
def test_a_directly_learned_lambda_weighs_the_second_map(kind: str) -> None:
    mixer = small.mixer_of("diff_v1", lam=kind, norm="none")
    x, where = small.tokens_of(1, 6), small.where_of(mixer, 6)
    mixer.lambda_raw.data.add_(torch.arange(mixer.lambda_raw.numel(), dtype=torch.float64) * 0.1)
    lam = mixer.lambda_raw.sigmoid() if kind == "sigmoid" else mixer.lambda_raw
    first, second = mixer.branches(x, where)
    expected = first.map - lam.expand(4)[:, None, None] * second.map
    assert_close(mixer.maps(x, where), expected, rtol=0, atol=1e-12)
    # A difference of two maps of row sum 1.
    assert_close(mixer.maps(x, where).sum(-1), (1 - lam).expand(4)[None, :, None].expand(1, 4, 6))


def test_lambda_is_float32_whatever_is_stored() -> None:
    mixer = small.mixer_of("diff_v1", torch.bfloat16)
    stored = [getattr(mixer, name).double() for name in VECTORS]
    exact = (stored[0] @ stored[1]).exp() - (stored[2] @ stored[3]).exp() + mixer.lambda_init
    lam = mixer.lam(small.tokens_of(1, 1, torch.bfloat16))
    assert lam.dtype == torch.float32
    # Rounding term by term in bfloat16 would be off by about 4e-3.
    assert abs(lam.item() - exact.item()) < 1e-6


@pytest.mark.parametrize("lam", [0.5, 1.0])
def test_the_first_row_is_finite_forward_and_backward(lam: float) -> None:
    mixer = small.mixer_of("diff_v1", torch.float32, lam="scalar")
    mixer.lambda_raw.data.fill_(lam)
    found = small.gradients(mixer, small.tokens_of(2, 4, torch.float32), small.where_of(mixer, 4, torch.float32))
    assert all(value.isfinite().all() for value in found.values())


def test_parameters_exceed_the_baselines_by_lambda_and_norm_alone() -> None:
    site = Site(width=64, layer=0, layers=1, context=16)
    v1 = small.config_of("diff_v1", heads=4, kv_heads=4).cost(site)
    baseline = small.config_of("softmax", heads=8, kv_heads=8).cost(site)
    assert v1.parameters == baseline.parameters + 4 * 8 + 2 * 8
    assert v1.cache_bytes == baseline.cache_bytes
    # One product of the combined map with V of 2 D costs what two products with D cost.
    assert v1.flops_algebra == baseline.flops_algebra


def test_heads_are_halved_and_not_their_width() -> None:
    """A Transformer of 16 heads of 128 becomes 8 heads of two maps of 128, with values of 256."""
    with torch.device("meta"):
        mixer = small.config_of("diff_v1", heads=8, kv_heads=8).build(Site(width=2048))
    assert (mixer.head_dim, mixer.value_dim, mixer.q.weight.shape) == (128, 256, (2048, 2048))


def test_the_cache_holds_two_keys_and_a_double_value_per_group() -> None:
    state = small.mixer_of("diff_v1").new_state(3, 10)
    assert state["k"].shape == (3, 4, 10, 4)
    assert state["v"].shape == (3, 2, 10, 8)


def test_biases_are_added_to_all_projections() -> None:
    mixer = small.mixer_of("diff_v1", biases=True)
    assert mixer.o.bias.numel() == 32
    assert (mixer.q.bias == 0).all()
    assert small.config_of("diff_v1", biases=True).cost(small.SITE).parameters == sum(
        parameter.numel() for parameter in mixer.parameters()
    )
    found = small.gradients(mixer, small.tokens_of(2, 6), small.where_of(mixer, 6))
    for part in ("q", "v", "o"):
        assert found[f"{part}.bias"].abs().max() > 1e-8


def test_heads_need_not_fill_the_width() -> None:
    mixer = small.mixer_of("diff_v1", heads=3, kv_heads=1, head_dim=10)
    assert mixer.q.weight.shape == (60, 32)
    assert mixer.o.weight.shape == (32, 60)
    assert mixer(small.tokens_of(2, 5), small.where_of(mixer, 5)).shape == (2, 5, 32)


def test_maps_may_start_equal() -> None:
    mixer = small.mixer_of("diff_v1", equal_maps=True)
    first, second = mixer.branches(small.tokens_of(2, 6), small.where_of(mixer, 6))
    assert_close(first.map, second.map, rtol=0, atol=1e-12)
    first, second = small.mixer_of("diff_v1").branches(small.tokens_of(2, 6), small.where_of(mixer, 6))
    assert not torch.allclose(first.map[:, :, 1:], second.map[:, :, 1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3, "kv_heads": 3}, "width 32 does not divide by 6"),
        ({"heads": 4, "kv_heads": 3}, "4 output heads cannot share 3 key/value heads"),
        ({"heads": 0}, "heads: got 0"),
        ({"heads": 2.0}, "heads: got 2.0"),
        ({"lam": "exponential"}, "lam: got 'exponential'"),
        ({"norm": "layer"}, "norm: got 'layer'"),
        ({"lam": "sigmoid", "lambda_init": 1.0}, "strictly between 0 and 1"),
        ({"lambda_init": math.nan}, "lambda_init: got nan"),
        ({"norm_eps": 0.0}, "norm_eps: got 0.0"),
        ({"impl": "cuda"}, "impl: got 'cuda'"),
    ],
)
def test_configs_that_cannot_stand_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small.config_of("diff_v1", **options).build(small.SITE)
