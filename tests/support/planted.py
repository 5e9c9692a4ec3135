"""Decoders whose predictions are known, in place of trained ones: their states are the logits themselves."""

import math

import numpy as np
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


class Hoping(Planted):
    """Expects the letter a with probability 0.9 once it has read so many tokens; before that it knows nothing."""

    def __init__(self, after: int, context: int = 64) -> None:
        super().__init__(context)
        self.after = after

    def probabilities(self, tokens: Tensor) -> Tensor:
        found = torch.full((*tokens.shape, VOCABULARY), 1 / VOCABULARY, dtype=torch.float64)
        found[:, self.after - 1 :] *= 0.1
        found[:, self.after - 1 :, ord("a")] += 0.9
        return found


def hopeful(draw: np.random.Generator, count: int, length: int, told: int) -> list[str]:
    """Documents of 1 to 4 passages of `length` letters whose last `told` are a or b, the others c.

    A document has a rate of a's of its own, far from the mean of one half: its passages are alike.
    """
    texts = []
    for rate, passages in zip(draw.beta(0.5, 0.5, count), draw.integers(1, 5, count), strict=True):
        letters = np.where(draw.random((passages, told)) < rate, "a", "b")
        texts.append("".join("c" * (length - told) + "".join(row) for row in letters))
    return texts


HOPED = 0.5 * math.log(0.9 * VOCABULARY + 0.1) + 0.5 * math.log(0.1)
"""What `Hoping` gains on the letters of `hopeful`, nats of a letter, over one that knows nothing."""
KNOWN = -math.log(0.9 + 0.1 / VOCABULARY)
"""Loss of `Copying` where it knows."""
GUESSED = math.log(VOCABULARY)
"""Its loss where it does not."""
