"""One pre-norm decoder for every attention variant."""

from typing import Any

import torch
from torch import Tensor, nn

from diffattn.model.cache import Cache
from diffattn.model.config import ModelConfig
from diffattn.variants.base import Mixer, Where


class Decoder(nn.Module):
    """A language model of a config; `build` makes one with values."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        config.validate()
        self.config = config
        self.checkpoint_activations = False

    @property
    def head(self) -> Tensor:
        """The output matrix [V, W]; the embedding itself where they are tied."""
        raise NotImplementedError

    def forward(
        self,
        tokens: Tensor,
        documents: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Give logits [B, T, V]."""
        raise NotImplementedError

    def hidden(
        self,
        tokens: Tensor,
        documents: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Give the states [B, T, W] behind the final norm; logits are their product with `head`."""
        raise NotImplementedError

    def init_weights(self, seed: int) -> None:
        """Fill every parameter."""
        raise NotImplementedError

    def lambdas(self, tokens: Tensor, documents: Tensor | None = None) -> list[Tensor | None]:
        """Give λ of each layer."""
        raise NotImplementedError

    def captured(self, tokens: Tensor, documents: Tensor | None = None) -> list[tuple[Mixer, Tensor, Where]]:
        """Give each layer's attention, its input [B, T, W] and its restrictions."""
        raise NotImplementedError

    def generate(self, tokens: Tensor, attention_mask: Tensor | None = None, max_new_tokens: int = 20, **options: Any):
        """Give the prompts and their continuations."""
        raise NotImplementedError


def build(
    config: ModelConfig, seed: int = 0, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> Decoder:
    """Make a model with starting values: on the meta device first, so that memory is taken once."""
    raise NotImplementedError
