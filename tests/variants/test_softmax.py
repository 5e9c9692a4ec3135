"""Ordinary attention: the formula, and the forms that the paper's ablation compares with."""

import pytest
import torch
from torch.testing import assert_close

import support.mixers as small
from diffattn.variants.base import Draw
from support.formulas import causal_map, head, rms_norm


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("temperature", [False, True])
@pytest.mark.parametrize("qwen", [False, True])
def test_the_formula(kv_heads: int, norm: bool, temperature: bool, qwen: bool) -> None:
    options = {"norm": norm, "temperature": temperature, "qkv_biases": qwen, "query_key_norm": qwen}
    mixer = small.mixer_of("softmax", kv_heads=kv_heads, **options)
    for name, parameter in mixer.named_parameters():
        if parameter.ndim == 1:
            assert (parameter == (0 if "bias" in name else 1)).all()
            parameter.data = parameter.data + Draw(1).normal(name, parameter.shape, 0.3)
    x, dim = small.tokens_of(1, 7)[0], 8
    q, k, v = mixer.q(x), mixer.k(x), mixer.v(x)
    heads = []
    for h in range(4):
        g = h // (4 // kv_heads)
        factor = mixer.temperature[h].item() if temperature else 1.0
        queries, keys = head(q, h, dim), head(k, g, dim)
        if qwen:
            queries, keys = rms_norm(queries, mixer.q_norm), rms_norm(keys, mixer.k_norm)
        read = causal_map(queries, keys, factor) @ head(v, g, dim)
        heads.append(rms_norm(read, mixer.norm_weight) if norm else read)
    expected = mixer.o(torch.cat(heads, dim=-1))
    assert_close(mixer(x[None], small.where_of(mixer, 7))[0], expected, rtol=0, atol=1e-12)


def test_half_as_many_heads_of_twice_the_width_cost_the_same() -> None:
    many = small.config_of("softmax", heads=8, kv_heads=8).cost(small.SITE)
    few = small.config_of("softmax", heads=4, kv_heads=4).cost(small.SITE)
    assert (many.parameters, many.flops_algebra, many.cache_bytes) == (
        few.parameters,
        few.flops_algebra,
        few.cache_bytes,
    )


@pytest.mark.parametrize(
    ("options", "extra"),
    [({"norm": True}, 8), ({"temperature": True}, 4), ({"query_key_norm": True}, 16), ({"qkv_biases": True}, 64)],
)
def test_options_cost_what_they_add(options: dict, extra: int) -> None:
    plain = small.config_of("softmax").cost(small.SITE).parameters
    assert small.config_of("softmax", **options).cost(small.SITE).parameters == plain + extra
    assert sum(p.numel() for p in small.mixer_of("softmax", **options).parameters()) == plain + extra


def test_many_queries_may_share_few_keys() -> None:
    mixer = small.mixer_of("softmax", heads=8, kv_heads=2, head_dim=8)
    assert mixer.q.weight.shape == (64, 32)
    assert mixer.o.weight.shape == (32, 64)
    assert mixer(small.tokens_of(2, 5), small.where_of(mixer, 5)).shape == (2, 5, 32)


@pytest.mark.parametrize("name", ["softmax", "sink", "dex"])
def test_layers_with_biases_and_normed_queries_train_and_decode_as_others(name: str) -> None:
    mixer = small.stirred_mixer_of(name, torch.float32, qkv_biases=True, query_key_norm=True)
    assert small.config_of(name, qkv_biases=True, query_key_norm=True).cost(small.SITE).parameters == sum(
        parameter.numel() for parameter in mixer.parameters()
    )
    x = small.tokens_of(2, 8, torch.float32)
    found = small.gradients(mixer, x, small.where_of(mixer, 8, torch.float32))
    for part, _ in mixer.named_parameters():
        assert found[part].abs().max() > 1e-5, part
    with torch.no_grad():
        assert_close(small.decoded(mixer, x, prefill=5), found["output"], rtol=0, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        # bfloat16 keeps 8 bits; a handful of roundings in a row.
        error = small.gradients(mixer, x, small.where_of(mixer, 8, torch.float32))["output"].float() - found["output"]
    assert error.norm() < 0.1 * found["output"].norm()


def test_lengths_are_divided_by_once() -> None:
    with pytest.raises(ValueError, match="query_key_norm: qk_norm divides"):
        small.mixer_of("qk_norm", query_key_norm=True)
