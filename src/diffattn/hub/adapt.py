"""A trained model continued as another attention: what both have in common is taken over, the rest is drawn."""

import dataclasses

import torch
from torch import Tensor

from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Decoder, build
from diffattn.variants.diff_v2 import DiffV2Mixer

ATTENTION = ("mixer", "mixers_by_layer")
"""Fields of `ModelConfig` in which the two models may differ."""


@torch.no_grad()
def adapt(source: Decoder, config: ModelConfig, seed: int) -> Decoder:
    """Make a model of `config` that starts from the weights of `source`, whose attention may be another.

    Parameters of one name are taken over; the first query of a diff_v2 pair is the source's query of that head. What
    the source does not have is drawn from the seed, as in a new model; what only the source has is dropped. Float32, on
    the source's device. ValueError, naming both, where another field of the configs or a tensor's shape differs.
    """
    for field in dataclasses.fields(ModelConfig):
        there, here = getattr(source.config, field.name), getattr(config, field.name)
        if field.name not in ATTENTION and there != here:
            raise ValueError(
                f"{field.name} is {there} in the model to start from and {here} in the new one; only the attention may "
                f"differ: set {field.name} to {there}"
            )
    model = build(config, seed, device=source.head.device)
    given = _in_pairs(source, model)
    for name, parameter in model.named_parameters():
        if name in given and given[name].shape != parameter.shape:
            raise ValueError(
                f"{name} is {list(given[name].shape)} in the model to start from and {list(parameter.shape)} in the "
                "new one; give the new attention the heads, key/value groups and head width of the old"
            )
        if name in given:
            parameter.copy_(given[name])
    return model


def _in_pairs(source: Decoder, model: Decoder) -> dict[str, Tensor]:
    """The source's parameters by name; where the model's queries come in pairs and the source's do not, with the second
    ones of the model."""
    given: dict[str, Tensor] = dict(source.named_parameters())
    for layer, (old, new) in enumerate(zip(source.blocks(), model.blocks(), strict=True)):
        name = f"layers.{layer}.mixer.q.weight"
        if isinstance(new.mixer, DiffV2Mixer) and name in given and old.mixer.head_dim == new.mixer.head_dim:
            first, both = given[name], new.mixer.q.weight
            if 2 * first.shape[0] == both.shape[0]:
                pairs = both.unflatten(0, (-1, 2, new.mixer.head_dim)).clone()
                pairs[:, 0] = first.unflatten(0, (-1, new.mixer.head_dim))
                given[name] = pairs.flatten(0, 2)
    return given
