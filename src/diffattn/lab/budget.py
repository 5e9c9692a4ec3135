"""Equal cost for every arm: the feed-forward's width is solved for until the non-embedding parameters agree."""

from dataclasses import replace

from diffattn.model.config import ModelConfig

LEFT_ALONE_PERCENT = 0.5
"""A mismatch below this share of the parameters keeps the baseline's width, so that all other tensors stay equal."""


def match(model: ModelConfig, target: int) -> ModelConfig:
    """Give the model with the feed-forward, in steps of 1, whose non-embedding parameters come nearest to target.

    ValueError where the attention alone is larger than the target allows.
    """
    given = model.cost().other_parameters
    if abs(given - target) < target * LEFT_ALONE_PERCENT / 100:
        return model
    per_unit = replace(model, ffn_width=model.ffn_width + 1).cost().other_parameters - given
    width = model.ffn_width + round((target - given) / per_unit)
    if width < 1:
        raise ValueError(
            f"{model.mixer.name} cannot be matched to {target:,} parameters: with a feed-forward of width 1 it has "
            f"{replace(model, ffn_width=1).cost().other_parameters:,}; give it fewer heads or match='native'"
        )
    return replace(model, ffn_width=width)
