"""One model of a comparison: an attention, settings of its own, and how the rest is matched to the baseline."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from diffattn.data.base import nearest
from diffattn.model.config import ModelConfig
from diffattn.variants.base import MixerConfig, get
from diffattn.variants.parts import HeadsConfig

SHARED = ("vocab_size", "context", "ffn_width", "mixer", "mixers_by_layer")
"""Settings that an arm cannot have through `Arm.model`: those of the data, and those with a field of their own."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One model of a comparison: an attention, and how the rest is matched to the baseline."""

    name: str
    """Short name, part of the run's folder: letters, digits, "_" and "."."""
    mixer: MixerConfig
    """The attention of every layer."""
    mixers_by_layer: dict[int, MixerConfig] = field(default_factory=dict)
    """Other attentions for single layers, by layer number from 0."""
    model: dict[str, Any] = field(default_factory=dict)
    """Other settings of the model that this arm alone has, such as {"positions": "alibi"}."""
    ffn_width: int | None = None
    """Width of the feed-forward; None: solved for, so that the non-embedding parameters equal the baseline's."""
    match: Literal["ffn", "native"] = "ffn"
    """"ffn": matched by the width of the feed-forward; "native": the baseline's width, parameters as they come."""
    learning_rate_factor: float = 1.0
    """Multiplies the learning rate of this arm: planted worse arms, and rates that an earlier sweep chose."""
    redraw_attention: int = 0
    """Added to the seed from which the attention's tensors alone are drawn: planted copies of the baseline."""
    trains: tuple[str, ...] = ()
    """Patterns of the parameters that this arm trains, as `TrainConfig.train_only`; empty: as the task says."""
    note: str = ""
    """One line for the report's table."""

    def validate(self) -> None:
        """Raise ValueError where `model` names what an arm cannot have for itself, and for `trains` without a list."""
        known = [f.name for f in fields(ModelConfig) if f.name not in SHARED]
        for name in self.model:
            if name not in known:
                raise ValueError(
                    f"arm {self.name!r}: model.{name} cannot be set for one arm{nearest(name, known)}; "
                    f"known: {', '.join(known)}"
                )
        if not isinstance(self.trains, tuple) or not all(isinstance(name, str) for name in self.trains):
            raise ValueError(f"arm {self.name!r}: trains is {self.trains!r}; expected names or patterns in a tuple")

    def model_from(self, shared: ModelConfig) -> ModelConfig:
        """Give the task's model with this arm's attention and settings; the feed-forward is not yet matched."""
        width = shared.ffn_width if self.ffn_width is None else self.ffn_width
        return replace(shared, mixer=self.mixer, mixers_by_layer=self.mixers_by_layer, ffn_width=width, **self.model)

    def to_dict(self) -> dict[str, Any]:
        """Give the fields, ready for JSON."""
        by_layer = {str(layer): mixer.to_dict() for layer, mixer in self.mixers_by_layer.items()}
        own = {"mixer": self.mixer.to_dict(), "mixers_by_layer": by_layer, "trains": list(self.trains)}
        return {**plain_fields(self), **own}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Undo `to_dict`."""
        by_layer = {int(layer): MixerConfig.from_dict(mixer) for layer, mixer in given["mixers_by_layer"].items()}
        trains = tuple(given["trains"]) if isinstance(given["trains"], list) else given["trains"]
        own = {"mixer": MixerConfig.from_dict(given["mixer"]), "mixers_by_layer": by_layer, "trains": trains}
        return cls(**{**given, **own})


def plain_fields(config: Any) -> dict[str, Any]:
    """Give a config's fields as they are, without descending into them."""
    return {f.name: getattr(config, f.name) for f in fields(config)}


def mixer_like(name: str, baseline: MixerConfig) -> MixerConfig:
    """Give a variant with the baseline's width of a query head; half as many heads where values are twice as wide.

    ValueError: an unknown variant, a baseline whose heads cannot be halved.
    """
    kind = get(name)
    if not (issubclass(kind, HeadsConfig) and isinstance(baseline, HeadsConfig)):
        return kind()
    fewer = kind.values_per_key
    if baseline.heads % fewer or baseline.groups % fewer:
        raise ValueError(
            f"{name}: it needs a baseline whose heads come in {fewer}s, this one has {baseline.heads} in "
            f"{baseline.groups} groups"
        )
    kv_heads = None if baseline.kv_heads is None else baseline.kv_heads // fewer
    return kind(heads=baseline.heads // fewer, kv_heads=kv_heads, head_dim=baseline.head_dim)
