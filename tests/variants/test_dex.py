"""Differential extension: the formula, its ramp, and that the output projection could have learned the same."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import support.mixers as small
from diffattn.variants.base import MixerConfig
from diffattn.variants.dex import Dex, DexMixer
from diffattn.variants.softmax import SoftmaxMixer
from support.formulas import causal_map, head


def dex(share: float = 0.5, **options: Any) -> DexMixer:
    mixer = small.stirred_mixer_of("dex", **options)
    assert isinstance(mixer, DexMixer)
    mixer.advance(share)
    return mixer


def softmax_with_the_weights_of(mixer: DexMixer, **options: Any) -> SoftmaxMixer:
    plain = small.mixer_of("softmax", **options)
    assert isinstance(plain, SoftmaxMixer)
    plain.load_state_dict({name: value for name, value in mixer.state_dict().items() if name in plain.state_dict()})
    return plain


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("dex_heads", [None, (0, 3)])
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_formula(kv_heads: int, dex_heads: tuple[int, ...] | None, share: float) -> None:
    mixer, x, dim = dex(share, kv_heads=kv_heads, dex_heads=dex_heads), small.tokens_of(1, 7)[0], 8
    q, k, v = mixer.q(x), mixer.k(x), mixer.v(x)
    lam = (1 - share) * share * 0.8 + share * mixer.lam_learned.item()
    heads = []
    for h in range(4):
        g = h // (4 // kv_heads)
        o = causal_map(head(q, h, dim), head(k, g, dim), 1.0) @ head(v, g, dim)
        heads.append(o - lam * o @ mixer.w_d if dex_heads is None or h in dex_heads else o)
    expected = mixer.o(torch.cat(heads, dim=-1))
    assert_close(mixer(x[None], small.where_of(mixer, 7))[0], expected, rtol=0, atol=1e-12)
    assert mixer.lam(x).item() == pytest.approx(lam)


@pytest.mark.parametrize("options", [{}, {"norm": True}, {"dex_heads": (1, 2)}])
def test_the_correction_folds_into_the_output_projection(options: dict[str, Any]) -> None:
    mixer = dex(0.7, **options)
    plain = softmax_with_the_weights_of(mixer, **{name: options[name] for name in options if name == "norm"})
    x, where = small.tokens_of(2, 7), small.where_of(mixer, 7)
    assert not torch.allclose(plain(x, where), mixer(x, where), atol=1e-3)
    with torch.no_grad():
        folded = plain.o.weight.unflatten(1, (4, 8))  # [W, H, E]: o_h is multiplied by [W, E]^T
        kept = torch.eye(8, dtype=torch.float64) - mixer.lam(x) * mixer.w_d
        for h in options.get("dex_heads", range(4)):
            folded[:, h] = folded[:, h] @ kept.T
    assert_close(plain(x, where), mixer(x, where), rtol=0, atol=1e-12)


def test_at_the_start_of_training_nothing_is_changed() -> None:
    mixer = dex(0.0)
    x, where = small.tokens_of(2, 7), small.where_of(mixer, 7)
    assert torch.equal(mixer(x, where), softmax_with_the_weights_of(mixer)(x, where))


def moved(mixer: DexMixer, shares: list[float]) -> bool:
    """Whether gradient steps at these shares of the training move W_D or the learned λ."""
    own = [mixer.w_d, mixer.lam_learned]
    x, where = small.tokens_of(2, 7), small.where_of(mixer, 7)
    for share in shares:
        mixer.advance(share)
        mixer.zero_grad()
        mixer(x, where).square().sum().backward()
        with torch.no_grad():
            for parameter in own:
                assert parameter.grad is not None
                parameter -= 0.01 * parameter.grad
    return all(bool(parameter.abs().max() > 0) for parameter in own)


def test_only_the_ramp_moves_what_starts_at_zero() -> None:
    shares = [0.0, 0.25, 0.5, 0.75]
    ramped, flat = (small.mixer_of("dex", lambda_init=height) for height in (0.8, 0.0))
    assert isinstance(ramped, DexMixer)
    assert isinstance(flat, DexMixer)
    assert not moved(flat, shares)
    assert not moved(ramped, [0.0, 1.0])
    assert moved(ramped, shares)


def test_a_saved_layer_remembers_how_far_it_was() -> None:
    mixer, other = dex(0.3), dex(0.9)
    x, where = small.tokens_of(2, 5), small.where_of(mixer, 5)
    assert not torch.allclose(other(x, where), mixer(x, where))
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(other(x, where), mixer(x, where))


def test_it_starts_as_the_softmax_layer_of_its_seed() -> None:
    plain, mixer = small.mixer_of("softmax", seed=3), small.mixer_of("dex", seed=3)
    for name, value in plain.state_dict().items():
        assert torch.equal(mixer.state_dict()[name], value), name
    assert {name for name in mixer.state_dict() if name not in plain.state_dict()} == {
        *Dex.trains,
        "progress",
    }


def test_chosen_heads_survive_json() -> None:
    config = small.config_of("dex", dex_heads=(0, 2))
    assert MixerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("heads", [(), (4,), (1, 1), (-1,)])
def test_heads_that_are_not_there_are_refused(heads: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"dex_heads: got .* needs different heads out of 0 to 3"):
        replace(Dex(heads=4), dex_heads=heads).validate(small.SITE)
