"""A trained model read at another context than that of its training."""

import copy
from dataclasses import replace

from diffattn.model.config import ModelConfig, Scaling
from diffattn.model.decoder import Decoder


def stretched(model: Decoder, context: int, scaling: Scaling = "none") -> Decoder:
    """Give the same model with another context: its layers, so that what is trained or moved in one is in the other.

    scaling: what rotary does beyond the context of training, as `ModelConfig.rope_scaling`; "none" leaves the positions
    as they are: rotary meets angles it has not seen, and alibi, xpos and no positions, which cannot be scaled, read on.
    ValueError as `stretched_config`.
    """
    other = copy.copy(model)  # shallow: its dictionaries of parameters and layers are the model's own
    other.config = stretched_config(model.config, context, scaling)
    other.config.check_dtype(model.head.dtype)
    return other


def stretched_config(config: ModelConfig, context: int, scaling: Scaling = "none") -> ModelConfig:
    """Give the config of a model at another context; rotary that is scaled already is scaled further.

    ValueError: a scaling without rotary, of another kind than the model's, or to a context that is not longer; xpos so
    far out that it overflows.
    """
    if scaling == "none":
        stretched = replace(config, context=context)
        if config.rope_scaling not in ("none", "linear"):
            original = config.rope_original_context or round(config.context / config.rope_factor)
            stretched = replace(stretched, rope_original_context=original)
    else:
        if config.positions != "rope":
            raise ValueError(
                f"scaling is {scaling!r}, but the model's positions are {config.positions!r}; only rope can be scaled: "
                'set scaling to "none"'
            )
        if config.rope_scaling not in ("none", scaling):
            raise ValueError(
                f"the model was trained with {config.rope_scaling} scaling and cannot be scaled by {scaling} on top; "
                f'set scaling to {config.rope_scaling!r}, or to "none" to leave it as it is'
            )
        if context <= config.context:
            raise ValueError(
                f"{scaling} scaling reaches beyond the model's context of {config.context}; got {context}: give more, "
                'or set scaling to "none"'
            )
        stretched = replace(
            config,
            context=context,
            rope_scaling=scaling,
            rope_factor=config.rope_factor * context / config.context,
            # Without one written down, context / rope_factor stays the context of training.
            rope_original_context=config.rope_original_context,
        )
    stretched.validate()
    return stretched


def scaling_towards(config: ModelConfig, longer: ModelConfig) -> Scaling:
    """Tell which scaling takes a model of `config` to the context of another: the other's, where its factor differs."""
    return longer.rope_scaling if longer.rope_factor != config.rope_factor else "none"
