"""A small model on a few windows, its maps straight from the operators, and everything summed entry by entry."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffattn import diff_attention_maps
from diffattn.data.base import NOT_SCORED, Batch
from diffattn.model.decoder import Decoder
from diffattn.variants.diff_v1 import DiffV1Mixer
from diffattn.variants.parts import pairs
from support.models import random_tokens, small_model


def stirred_model(variant: str, **fields: object) -> Decoder:
    """As after some training: variants start with zeros, and with maps that are nearly alike."""
    model = small_model(variant, torch.float64, **fields)  # pyright: ignore[reportArgumentType]
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def text_batch(rows: int = 3, length: int = 20) -> Batch:
    """Windows in which a document ends, some targets unscored."""
    tokens = random_tokens(rows, length + 1)
    targets, documents = tokens[:, 1:].clone(), torch.zeros(rows, length, dtype=torch.int64)
    documents[1, 8:], documents[2, 13:] = 1, 2
    targets[1, 7] = targets[2, 12] = NOT_SCORED
    return Batch(tokens[:, :-1], targets, documents)


def recall_batch() -> Batch:
    """Pairs "k v" and then questions: 1 5, 2 6, 3 7, then 2 6, 1 5, 3 7, 2 6; the last has two sources."""
    row = torch.tensor([1, 5, 2, 6, 3, 7, 2, 6, 1, 5, 3, 7, 2, 6])
    tokens = torch.stack((row, row + 10))
    targets = tokens.roll(-1, 1)
    asked = torch.arange(len(row)) % 2 == 0
    targets[:, ~asked | (torch.arange(len(row)) < 6)] = NOT_SCORED
    return Batch(tokens, targets, torch.arange(2)[:, None].expand_as(tokens).clone())


@dataclass
class Maps:
    """What one layer of V1 computes: [B, H, T, T] maps, λ, and who sees whom [B, T, T]."""

    first: np.ndarray
    second: np.ndarray
    lam: float
    visible: np.ndarray
    values: np.ndarray
    """[B, H, T, E], repeated for the heads of a group."""

    @property
    def effective(self) -> np.ndarray:
        return self.first - self.lam * self.second

    def entries(self, map: np.ndarray, head: int) -> np.ndarray:
        return map[:, head][self.visible]

    def rows(self, map: np.ndarray, head: int) -> list[np.ndarray]:
        """The visible entries of each row."""
        windows, tokens = self.visible.shape[:2]
        return [map[b, head, t][self.visible[b, t]] for b in range(windows) for t in range(tokens)]


def maps_of(model: Decoder, batch: Batch) -> list[Maps]:
    """Each layer's, by `diff_attention_maps`."""
    found = []
    documents = batch.documents
    ids = documents.numpy()
    visible = np.tril(ids[:, :, None] == ids[:, None])
    for mixer, x, where in model.captured(batch.tokens, documents):
        assert isinstance(mixer, DiffV1Mixer)
        with torch.no_grad():
            q, k, v = mixer.read(x, where, None)
            (q1, q2), (k1, k2) = pairs(q), pairs(k)
            first, second = diff_attention_maps(q1, k1, q2, k2, is_causal=True, documents=documents)
            lam = float(mixer.lam(x))
            values = v.repeat_interleave(mixer.heads // mixer.groups, dim=1)
        found.append(Maps(first.numpy(), second.numpy(), lam, visible, values.numpy()))
    return found


def losses_of(model: Decoder, batch: Batch) -> Tensor:
    """[B, T] nats, NaN where nothing is scored."""
    with torch.no_grad():
        logits = model(batch.tokens, batch.documents)
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")
    return losses.masked_fill(batch.targets == NOT_SCORED, torch.nan)
