"""A trained model continued as another attention: what both have in common is taken over, the rest is drawn."""

import dataclasses

import torch
from torch import Tensor

from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Decoder, build
from diffattn.variants.base import Mixer
from diffattn.variants.dex import DexMixer
from diffattn.variants.diff_v2 import DiffV2Mixer

ATTENTION = ("mixer", "mixers_by_layer")
"""Fields of `ModelConfig` in which the two models may differ."""


@torch.no_grad()
def adapt(source: Decoder, config: ModelConfig, seed: int) -> Decoder:
    """Make a model of `config` that starts from the weights of `source`, whose attention may be another.

    Parameters of one name are taken over; the first query of a diff_v2 pair is the source's query of that head. A dex
    source gives the softmax layer that computes the same (`DexMixer.folded`), so that a dex model continues its own
    function, on a new ramp. What the source does not have is drawn from the seed, as in a new model; what only the
    source has is dropped. Float32, on the source's device. ValueError as `check_continues`.
    """
    _check_fields(source.config, config)
    model = build(config, seed, device=source.head.device)
    values = model.state_dict()
    for name, value in _taken_over(source, model).items():
        values[name].copy_(value)
    return model


def check_continues(source: ModelConfig, config: ModelConfig) -> None:
    """Raise ValueError, naming both, where a model of `config` cannot start from the weights of one of `source`.

    That is where anything but the attention differs, where the heads of a layer are others (their number, groups,
    width of keys or of values; weights of equal shape may hold other heads), or where the shape of a tensor differs.
    """
    _check_fields(source, config)
    with torch.device("meta"):
        _taken_over(Decoder(source), Decoder(config))


def _check_fields(source: ModelConfig, config: ModelConfig) -> None:
    for field in dataclasses.fields(ModelConfig):
        there, here = getattr(source, field.name), getattr(config, field.name)
        if field.name not in ATTENTION and there != here:
            raise ValueError(
                f"{field.name} is {there} in the model to start from and {here} in the new one; only the attention may "
                f"differ: set {field.name} to {there}"
            )


def _taken_over(source: Decoder, model: Decoder) -> dict[str, Tensor]:
    """What the model has from the source, by name; ValueError where it does not fit."""
    given = source.state_dict()
    for layer, (old, new) in enumerate(zip(source.blocks(), model.blocks(), strict=True)):
        names = [config.mixer_at(layer).name for config in (source.config, model.config)]
        there, here = _heads(old.mixer), _heads(new.mixer)
        if there != here:
            raise ValueError(
                f"layer {layer} of the model to start from is {names[0]} with {there}, that of the new one {names[1]} "
                f"with {here}; weights can be taken over between equal heads only"
            )
        prefix = f"layers.{layer}.mixer."
        if isinstance(old.mixer, DexMixer):
            for name in old.mixer.correction:
                del given[prefix + name]
            given[f"{prefix}o.weight"] = old.mixer.folded()
        if getattr(old.mixer, "lam_kind", None) != getattr(new.mixer, "lam_kind", None):
            # A number in one, a logit in the other.
            given.pop(f"{prefix}lambda_raw", None)
        if isinstance(new.mixer, DiffV2Mixer) and not isinstance(old.mixer, DiffV2Mixer):
            given[f"{prefix}q.weight"] = _in_pairs(given[f"{prefix}q.weight"], new.mixer)
    taken = {name: given[name] for name in model.state_dict() if name in given}
    for name, value in model.state_dict().items():
        if name in taken and taken[name].shape != value.shape:
            raise ValueError(
                f"{name} is {list(taken[name].shape)} in the model to start from and {list(value.shape)} in the new "
                "one; the new attention cannot start from the weights of the old"
            )
    return taken


def _heads(mixer: Mixer) -> str:
    """What the heads of a layer are; a layer that does not tell has heads of its own kind."""
    heads, groups, keys, values = (
        getattr(mixer, name, "unknown") for name in ("heads", "groups", "head_dim", "value_dim")
    )
    return f"{heads} output heads in {groups} key/value groups, keys {keys} and values {values} wide"


def _in_pairs(first: Tensor, mixer: DiffV2Mixer) -> Tensor:
    """Queries of a source without pairs, each with the second one of its head in the model."""
    pairs = mixer.q.weight.detach().unflatten(0, (-1, 2, mixer.head_dim)).clone()
    pairs[:, 0] = first.unflatten(0, (-1, mixer.head_dim))
    return pairs.flatten(0, 2)
