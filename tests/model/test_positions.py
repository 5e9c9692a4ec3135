"""Decoders told of positions in each way: rotary (scaled too), xPos, ALiBi, not at all."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Decoder, build
from diffattn.ops.positions import rotary_tables, yarn_tables
from diffattn.variants.base import MixerConfig
from support.models import random_tokens, small_config, small_model

KINDS: dict[str, dict[str, Any]] = {
    "rope": {},
    "half": {"rope_share": 0.5},
    "linear": {"rope_scaling": "linear", "rope_factor": 4.0},
    "yarn": {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_context": 6, "rope_base": 10.0},
    "xpos": {"positions": "xpos"},
    "alibi": {"positions": "alibi"},
    "none": {"positions": "none"},
}

# Float64: rounding of logits of order 1.
CLOSE = {"rtol": 0.0, "atol": 1e-10}

every_kind = pytest.mark.parametrize("kind", KINDS)
both_kinds_of_maps = pytest.mark.parametrize("variant", ["softmax", "diff_v1"])


def model_of(kind: str, variant: str = "diff_v1", **fields: Any) -> Decoder:
    return small_model(variant, torch.float64, **{**KINDS[kind], **fields})


@every_kind
@both_kinds_of_maps
def test_prefill_and_decoding_equal_the_full_forward(kind: str, variant: str) -> None:
    model, tokens = model_of(kind, variant), random_tokens(2, 12)
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[0, :4] = 0
    cache, parts = model.new_cache(2, 16), []
    with torch.no_grad():
        for at in [slice(0, 6), slice(6, 9), *(slice(i, i + 1) for i in range(9, 12))]:
            parts.append(model(tokens[:, at], attention_mask=mask[:, at], cache=cache))
        whole = model(tokens, attention_mask=mask)
    assert_close(torch.cat(parts, dim=1)[mask == 1], whole[mask == 1], **CLOSE)


@every_kind
@both_kinds_of_maps
def test_left_padding_changes_nothing(kind: str, variant: str) -> None:
    model, tokens = model_of(kind, variant), random_tokens(1, 12)
    mask = torch.tensor([[0] * 4 + [1] * 8])
    assert_close(model(tokens, attention_mask=mask)[:, 4:], model(tokens[:, 4:]), **CLOSE)


@every_kind
@both_kinds_of_maps
def test_a_packed_document_reads_as_it_does_alone(kind: str, variant: str) -> None:
    model, tokens = model_of(kind, variant), random_tokens(1, 12)
    packed = model(tokens, torch.tensor([[0] * 5 + [1] * 7]))
    assert_close(packed, torch.cat((model(tokens[:, :5]), model(tokens[:, 5:])), dim=1), **CLOSE)


@every_kind
@both_kinds_of_maps
def test_gradients_are_those_of_finite_differences(kind: str, variant: str) -> None:
    """Along one random direction through all weights."""
    model, tokens = model_of(kind, variant), random_tokens(2, 12)
    weights = list(model.parameters())
    model(tokens).logsumexp(-1).sum().backward()
    draw = torch.Generator().manual_seed(0)
    steps = [torch.randn(w.shape, generator=draw, dtype=w.dtype) for w in weights]
    slope = sum((w.grad * step).sum() for w, step in zip(weights, steps, strict=True) if w.grad is not None)
    ends: list[Tensor] = []
    with torch.no_grad():
        for size in (1e-6, -2e-6):
            for w, step in zip(weights, steps, strict=True):
                w += size * step
            ends.append(model(tokens).logsumexp(-1).sum())
    # Sums of size 100 cancel to 1e-6: eight digits are left; the step's own error is smaller.
    assert_close(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=0)


@every_kind
def test_an_earlier_order_matters_where_positions_are_told(kind: str) -> None:
    """In one layer; deeper ones could tell the order from what the causal mask lets earlier tokens see."""
    model, tokens = model_of(kind, layers=1), random_tokens(1, 12)
    reordered = torch.cat((tokens[:, :11].flip(1), tokens[:, 11:]), dim=1)
    moved = (model(reordered)[:, -1] - model(tokens)[:, -1]).abs().max()
    assert moved < 1e-12 if kind == "none" else moved > 1e-3


@every_kind
def test_sequences_of_four_contexts_stay_finite(kind: str) -> None:
    model, tokens = model_of(kind).float(), random_tokens(1, 4 * 24)
    logits = model(tokens)
    logits.logsumexp(-1).sum().backward()
    assert logits.isfinite().all()
    assert all(w.grad is not None and w.grad.isfinite().all() for w in model.parameters())


def test_slopes_are_those_of_each_layers_own_output_heads() -> None:
    other = MixerConfig.from_dict({"name": "softmax", "heads": 8})
    model = small_model("diff_v1", mixers_by_layer={1: other}, positions="alibi")
    seen = [where for _, _, where in model.captured(random_tokens(1, 5))]
    powers = [torch.log2(where.alibi).tolist() for where in seen if where.alibi is not None]
    assert powers == [[-2, -4, -6, -8], [-1, -2, -3, -4, -5, -6, -7, -8]]
    assert all(where.positions is None for where in seen)


def test_scalings_reach_the_tables() -> None:
    positions = torch.arange(12, dtype=torch.float64)
    linear, yarn = (model_of(kind).captured(random_tokens(1, 12))[0][2].positions for kind in ("linear", "yarn"))
    assert_close(linear, rotary_tables(positions / 4, 4, dtype=torch.float64), **CLOSE)
    assert_close(yarn, yarn_tables(positions, 4, 4.0, 6, base=10.0, dtype=torch.float64), **CLOSE)
    by_default = model_of("yarn", rope_original_context=None, context=24).captured(random_tokens(1, 12))[0][2].positions
    assert_close(by_default, yarn, **CLOSE)


@every_kind
def test_config_survives_json(kind: str) -> None:
    config = small_config(**KINDS[kind])
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    build(config)


def test_configs_from_before_the_scalings_load() -> None:
    stored = small_config().to_dict()
    for field in ("rope_scaling", "rope_factor", "rope_original_context"):
        del stored[field]
    assert ModelConfig.from_dict(stored) == small_config()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": "sinusoidal"}, "rope, xpos, alibi, none"),
        ({"rope_scaling": "ntk"}, "none, linear, yarn"),
        ({"rope_scaling": "yarn", "rope_factor": 2.0, "positions": "alibi"}, "it needs rope"),
        ({"rope_factor": 2.0}, "rope_factor is 2.0 without rope_scaling"),
        ({"rope_scaling": "linear"}, "linear scaling needs one above 1"),
        ({"rope_scaling": "linear", "rope_factor": 2.0, "rope_original_context": 12}, "for yarn and llama3"),
        ({"rope_scaling": "yarn", "rope_factor": 2.0, "rope_original_context": 0}, "at least 1"),
        ({"positions": "xpos", "context": 30_595}, "beyond 30594"),
        ({"rope_share": 0.2}, "of a head of 8 channels leaves no pair to turn"),
    ],
)
def test_settings_without_meaning_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoder(small_config(**fields))


def test_xpos_serves_the_longest_context_it_admits() -> None:
    small_config(positions="xpos", context=30_594).validate()


def test_xpos_in_float16_is_refused_where_float16_cannot_hold_it() -> None:
    named = "xpos overflows in float16 beyond 3398"
    config = small_config(positions="xpos", context=3399)
    with pytest.raises(ValueError, match=f"context is 3399; {named}"):
        build(config, dtype=torch.float16)
    model, tokens = build(config), random_tokens(1, 4)
    assert model(tokens).isfinite().all()
    assert build(config, dtype=torch.bfloat16)(tokens).isfinite().all()
    with pytest.raises(ValueError, match=named):
        model.half()(tokens)


def test_xpos_in_float16_serves_the_longest_context_it_admits_and_nothing_beyond() -> None:
    model = small_model("softmax", torch.float16, positions="xpos", context=3398, layers=1)
    wide = small_model("softmax", torch.float64, positions="xpos", context=3398, layers=1)
    wide.load_state_dict(model.state_dict())
    with torch.no_grad():
        tokens = random_tokens(1, 3398)
        # 10 bits of float16, some dozen roundings, logits of order 1.
        assert_close(model(tokens).double(), wide(tokens), rtol=0, atol=2e-2)
        with pytest.raises(ValueError, match=r"xPos overflows in torch\.float16 beyond 1699 positions"):
            model(random_tokens(1, 3400))
