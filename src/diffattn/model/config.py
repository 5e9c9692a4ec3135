"""The decoder's config, and what a model of it costs without building one."""

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import torch

from diffattn.ops.loss import head_products
from diffattn.ops.positions import xpos_reach
from diffattn.variants.base import MixerConfig, Site, check_whole

Positions = Literal["rope", "xpos", "alibi", "none"]
Scaling = Literal["none", "linear", "yarn", "llama3"]


def _default_mixer() -> MixerConfig:
    return MixerConfig.from_dict({"name": "softmax", "heads": 6})


@dataclass(frozen=True)
class ModelCost:
    """What a model costs; FLOPs are those of matrix products in a training step, per token at full context."""

    parameters: int
    """Exact number of parameters."""
    embedding_parameters: int
    """Those of the embedding, and of the output head where it is not tied."""
    other_parameters: int
    """All the others: what budgets are matched on."""
    flops_algebra: int
    """Least work for the function, output head included; no credit for causality."""
    flops_executed: int
    """What torch's FlopCounterMode counts on a CPU, the output head included, whose logits the loss may take twice."""
    cache_bytes: int
    """Bytes per token that decoding must remember, at 4 bytes per number."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A pre-norm decoder: RMSNorm, SwiGLU without biases, one attention variant or several."""

    vocab_size: int = 256
    """Number of token ids, V."""
    width: int = 96
    """Width of the residual stream, W."""
    layers: int = 3
    """Number of blocks."""
    context: int = 256
    """Longest sequence in training, in tokens; generation stays within it."""
    ffn_width: int = 256
    """Inner width of the SwiGLU feed-forward, F: three matrices of W x F."""
    mixer: MixerConfig = field(default_factory=_default_mixer)
    """The attention of every layer that `mixers_by_layer` does not name."""
    mixers_by_layer: dict[int, MixerConfig] = field(default_factory=dict)
    """Attention of single layers, by their number from 0."""
    tied_embeddings: bool = True
    """The output head is the embedding."""
    embedding_scale: bool = True
    """Embeddings start as N(0, 1/W) and are multiplied by sqrt(W) on the way in; otherwise N(0, 0.02), unscaled."""
    token_shift: bool = False
    """Half of the attention input's channels come from the previous token of the same document (0 at its start)."""
    norm_eps: float = 1e-5
    """Added to the mean square in the block and final RMSNorm."""
    rope_base: float = 10000.0
    """Base of the rotary frequencies; no effect for alibi and none."""
    rope_share: float = 1.0
    """Share of each head's channels that rotary turns, rounded down to an even number; no effect for alibi and none."""
    rope_scaling: Scaling = "none"
    """How rotary reaches beyond the context it was trained at: linear (positions divided by the factor), yarn, or the
    ramp of Llama 3.1."""
    rope_factor: float = 1.0
    """How many times longer than in training the context is; above 1 with a scaling, 1 without."""
    rope_original_context: int | None = None
    """Context of training, for yarn and llama3; None: context / rope_factor."""
    positions: Positions = "rope"
    """How attention learns of positions: rotary, rotary with xPos's decay, ALiBi's distance bias, or not at all."""

    def mixer_at(self, layer: int) -> MixerConfig:
        """Give the attention config of a layer, counted from 0."""
        return self.mixers_by_layer.get(layer, self.mixer)

    def site(self, layer: int) -> Site:
        """Describe a layer's place to its attention config."""
        return Site(width=self.width, layer=layer, layers=self.layers, context=self.context)

    def validate(self) -> None:
        """Raise ValueError, naming the field, where no model of this config can be built."""
        for name in ("vocab_size", "width", "layers", "context", "ffn_width"):
            check_whole(name, getattr(self, name), 1)
        self._validate_positions()
        for name in ("norm_eps", "rope_base"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.token_shift and self.width % 2:
            raise ValueError(f"token_shift moves half of the channels; width {self.width} is odd, make it even")
        for layer in self.mixers_by_layer:
            if not isinstance(layer, int) or not 0 <= layer < self.layers:
                raise ValueError(f"mixers_by_layer names layer {layer!r}; the layers are 0 to {self.layers - 1}")
        for layer in range(self.layers):
            self.mixer_at(layer).validate(self.site(layer))

    def _validate_positions(self) -> None:
        for name, known in (("positions", get_args(Positions)), ("rope_scaling", get_args(Scaling))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")
        if not 0 < self.rope_share <= 1:
            raise ValueError(f"rope_share is {self.rope_share}; it must lie above 0 and at most at 1 (the whole head)")
        if self.rope_scaling != "none" and self.positions != "rope":
            raise ValueError(f"rope_scaling is {self.rope_scaling!r} with positions {self.positions!r}; it needs rope")
        if self.rope_scaling == "none" and self.rope_factor != 1:
            raise ValueError(f"rope_factor is {self.rope_factor} without rope_scaling; choose a scaling")
        if self.rope_scaling != "none" and not self.rope_factor > 1:
            raise ValueError(f"rope_factor is {self.rope_factor}; {self.rope_scaling} scaling needs one above 1")
        if self.rope_original_context is not None:
            if self.rope_scaling not in ("yarn", "llama3"):
                raise ValueError("rope_original_context is for yarn and llama3; leave it out or choose one of them")
            check_whole("rope_original_context", self.rope_original_context, 1)
        self.check_dtype(torch.float32)

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise ValueError where queries and keys of this dtype, that of the weights, would overflow."""
        if self.positions != "xpos":
            return
        longest = 2 * xpos_reach(dtype)  # its center is half the context
        if self.context > longest:
            name = str(dtype).removeprefix("torch.")
            raise ValueError(f"context is {self.context}; xpos overflows in {name} beyond {longest}, shorten it")

    def cost(self) -> ModelCost:
        """Add up the parameters, training FLOPs and cache of all layers and the output head."""
        self.validate()
        mixers = [self.mixer_at(layer).cost(self.site(layer)) for layer in range(self.layers)]
        ffn = 3 * self.width * self.ffn_width
        norms = (2 * self.layers + 1) * self.width
        embedding = self.vocab_size * self.width * (1 if self.tied_embeddings else 2)
        other = sum(mixer.parameters for mixer in mixers) + self.layers * ffn + norms
        # A product with a matrix of n entries takes 2n FLOPs per token, and twice that again in the backward pass.
        blocks, head = 6 * self.layers * ffn, 2 * self.vocab_size * self.width
        return ModelCost(
            parameters=embedding + other,
            embedding_parameters=embedding,
            other_parameters=other,
            flops_algebra=sum(mixer.flops_algebra for mixer in mixers) + blocks + 3 * head,
            flops_executed=sum(mixer.flops_executed for mixer in mixers)
            + blocks
            + head_products(self.vocab_size) * head,
            cache_bytes=sum(mixer.cache_bytes for mixer in mixers),
        )

    def to_dict(self) -> dict[str, Any]:
        """Give the fields ready for JSON; layer numbers become strings."""
        fields = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        fields["mixer"] = self.mixer.to_dict()
        fields["mixers_by_layer"] = {str(layer): mixer.to_dict() for layer, mixer in self.mixers_by_layer.items()}
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Undo `to_dict`; ValueError with the nearest name for unknown fields and variants."""
        known = [item.name for item in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ValueError(f"a model config has no field {name!r}{hint} (there are: {', '.join(known)})")
        given = dict(fields)
        if "mixer" in given:
            given["mixer"] = MixerConfig.from_dict(given["mixer"])
        mixers = given.get("mixers_by_layer", {})
        given["mixers_by_layer"] = {int(layer): MixerConfig.from_dict(mixer) for layer, mixer in mixers.items()}
        return cls(**given)
