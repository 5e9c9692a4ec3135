"""Decoders whose predictions are known, in place of trained ones: their states are the logits themselves."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from diffattn.data.tokenizer import Bytes
from diffattn.model.cache import Cache
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Decoder
from diffattn.variants.softmax import Softmax

VOCABULARY = Bytes.vocab_size


class Planted(Decoder):
    """Reads bytes; a subclass says what it thinks of the next one."""

    def __init__(self, context: int = 64) -> None:
        sizes = {"vocab_size": VOCABULARY, "width": VOCABULARY, "layers": 1, "ffn_width": 1, "positions": "none"}
        super().__init__(ModelConfig(**sizes, context=context, mixer=Softmax(heads=1, head_dim=2)))
        torch.nn.init.eye_(self.embedding.weight)
        self.double()

    def hidden(
        self,
        tokens: Tensor,
        documents: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        assert documents is None and attention_mask is None and cache is None
        return self.probabilities(tokens).log()

    def probabilities(self, tokens: Tensor) -> Tensor:
        """Of each next token, [B, T, V], given tokens [B, T]."""
        raise NotImplementedError


class Ignorant(Planted):
    """Has one opinion whatever it reads: the higher the number of a byte, the likelier it is."""

    def probabilities(self, tokens: Tensor) -> Tensor:
        weights = torch.arange(1, VOCABULARY + 1, dtype=torch.float64)
        return (weights / weights.sum()).expand(*tokens.shape, VOCABULARY)


class Copying(Planted):
    """Knows that what it read `lag` tokens ago comes again, with probability 0.9; before that it knows nothing."""

    def __init__(self, lag: int, context: int = 64) -> None:
        super().__init__(context)
        self.lag = lag

    def probabilities(self, tokens: Tensor) -> Tensor:
        even = torch.full((*tokens.shape, VOCABULARY), 1 / VOCABULARY, dtype=torch.float64)
        # The token after place t is the one of place t + 1 - lag.
        if tokens.shape[1] < self.lag:
            return even
        copied = F.one_hot(tokens[:, : tokens.shape[1] - self.lag + 1], VOCABULARY).double()
        even[:, self.lag - 1 :] = 0.1 / VOCABULARY + 0.9 * copied
        return even


KNOWN = -math.log(0.9 + 0.1 / VOCABULARY)
"""Loss of `Copying` where it knows."""
GUESSED = math.log(VOCABULARY)
"""Its loss where it does not."""
