"""A model read at another context: the same weights, other angles."""

from typing import Any

import pytest
import torch

from diffattn.model.decoder import Decoder, build
from diffattn.model.stretch import stretched, stretched_config
from support.models import random_tokens, small_config, small_model


def reread(model: Decoder, **fields: Any) -> Decoder:
    """A model built at those fields and given the weights."""
    other = build(small_config(**{"positions": model.config.positions, **fields}), dtype=model.head.dtype)
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize(
    ("scaling", "fields"),
    [
        ("none", {}),
        ("linear", {"rope_scaling": "linear", "rope_factor": 2.0}),
        ("yarn", {"rope_scaling": "yarn", "rope_factor": 2.0, "rope_original_context": 24}),
        ("llama3", {"rope_scaling": "llama3", "rope_factor": 2.0, "rope_original_context": 24}),
    ],
)
def test_a_stretched_model_computes_what_one_built_at_that_context_does(scaling: Any, fields: dict[str, Any]) -> None:
    model, tokens = small_model(), random_tokens(2, 48)
    with torch.no_grad():
        expected = reread(model, context=48, **fields)(tokens)
        assert torch.equal(stretched(model, 48, scaling)(tokens), expected)


@pytest.mark.parametrize("positions", ["rope", "xpos", "alibi", "none"])
def test_without_scaling_what_fitted_before_is_read_as_before(positions: Any) -> None:
    model, tokens = small_model(positions=positions), random_tokens(2, 24)
    with torch.no_grad():
        # xpos moves its center, which changes the rounding only.
        torch.testing.assert_close(stretched(model, 96)(tokens), model(tokens), rtol=1e-9, atol=1e-9)


def test_weights_are_shared_and_the_model_keeps_its_context() -> None:
    model, tokens = small_model(), random_tokens(1, 24)
    longer = stretched(model, 48, "yarn")
    with torch.no_grad():
        model.layers[0].up.weight.zero_()
        assert torch.equal(longer.layers[0].up.weight, model.layers[0].up.weight)
        assert longer.state_dict().keys() == model.state_dict().keys()
        assert not torch.equal(longer(tokens), model(tokens))
    assert (model.config.context, model.config.rope_scaling) == (24, "none")
    assert longer.generate(tokens, max_new_tokens=24).shape == (1, 48)


@pytest.mark.parametrize("scaling", ["linear", "yarn", "llama3"])
def test_stretching_twice_is_stretching_once(scaling: Any) -> None:
    twice = stretched_config(stretched_config(small_config(), 48, scaling), 96, scaling)
    assert twice == stretched_config(small_config(), 96, scaling)


def test_a_yarn_model_without_a_written_original_context_keeps_the_one_it_had() -> None:
    config = small_config(context=48, rope_scaling="yarn", rope_factor=2.0)
    assert stretched_config(config, 96).rope_original_context == 24


@pytest.mark.parametrize(
    ("fields", "context", "scaling", "message"),
    [
        ({"positions": "alibi"}, 48, "yarn", "only rope can be scaled"),
        ({"positions": "xpos"}, 48, "linear", "only rope can be scaled"),
        ({}, 24, "linear", "beyond the model's context of 24"),
        ({"rope_scaling": "linear", "rope_factor": 2.0}, 48, "yarn", "trained with linear"),
        ({"positions": "xpos"}, 10**6, "none", "xpos overflows"),
        ({}, 48, "ntk", "rope_scaling is 'ntk'"),
    ],
)
def test_what_cannot_be_stretched_is_refused(fields: dict[str, Any], context: int, scaling: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stretched(small_model(**fields), context, scaling)
