"""The model's config: JSON, refusals, and costs that equal the real ones."""

import json
from typing import Any

import pytest
import torch

from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Decoder, build
from diffattn.variants.base import MixerConfig
from support.flops import counted_flops
from support.implementations import RUNNING
from support.models import VARIANTS, random_tokens, small_config

OTHER = MixerConfig.from_dict({"name": "diff_v1", "heads": 2, "lambda_init": 0.8})


@pytest.mark.parametrize("variant", VARIANTS)
def test_config_survives_json(variant: str) -> None:
    config = small_config(variant, mixers_by_layer={1: OTHER}, token_shift=True, rope_share=0.5, positions="none")
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_default_config_survives_json_and_builds() -> None:
    config = ModelConfig.from_dict(json.loads(json.dumps(ModelConfig().to_dict())))
    assert config == ModelConfig()
    assert build(config)(random_tokens(1, 4)).shape == (1, 4, 256)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"widht": 32}, "did you mean 'width'"),
        ({"mixer": {"name": "diff_v11"}}, "did you mean 'diff_v1'"),
        ({"mixers_by_layer": {"0": {"name": "sofmax"}}}, "did you mean 'softmax'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 0}, "width: got 0"),
        ({"vocab_size": 2.5}, "vocab_size: got 2.5"),
        ({"layers": True}, "layers: got True"),
        ({"positions": "sinusoidal"}, "rope, xpos, alibi, none"),
        ({"rope_share": 1.5}, "rope_share is 1.5"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0"),
        ({"mixers_by_layer": {2: OTHER}}, "layers are 0 to 1"),
        ({"width": 33, "token_shift": True}, "width 33 is odd"),
        ({"width": 30}, "30"),
    ],
)
def test_impossible_configs_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoder(small_config(**fields))


@pytest.mark.parametrize("impl", RUNNING)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fields", [{}, {"tied_embeddings": False, "mixers_by_layer": {1: OTHER}}])
def test_cost_equals_the_real_parameters_and_counted_flops(variant: str, impl: str, fields: dict[str, Any]) -> None:
    config = small_config(variant, {"impl": impl}, token_shift=True, **fields)
    cost, model = config.cost(), build(config)
    outside = {"embedding.weight", "unembedding.weight"}
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert cost.parameters == sum(sizes.values())
    assert cost.embedding_parameters == sum(size for name, size in sizes.items() if name in outside)
    assert cost.other_parameters == cost.parameters - cost.embedding_parameters
    counted = counted_flops(lambda: model(random_tokens(1, config.context)))
    assert cost.flops_executed * config.context == counted
    assert cost.flops_algebra <= cost.flops_executed


@pytest.mark.parametrize("variant", VARIANTS)
def test_cost_equals_the_bytes_that_the_cache_grows_by(variant: str) -> None:
    model = build(small_config(variant))
    size = {
        slots: sum(t.numel() * t.element_size() for state in model.new_cache(1, slots).states for t in state.values())
        for slots in (7, 8)
    }
    assert model.config.cost().cache_bytes == size[8] - size[7]


def test_heads_of_another_layer_may_be_of_another_width() -> None:
    config = small_config("softmax", mixers_by_layer={1: OTHER}, rope_share=0.75)
    model = build(config, dtype=torch.float64)
    assert [block.rotary_dim for block in model.blocks()] == [6, 6]
    assert build(small_config(positions="none")).blocks()[0].rotary_dim == 0
