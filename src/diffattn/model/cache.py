"""What decoding remembers, in buffers whose shape never changes."""

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from diffattn.variants.base import Mixer


class Cache:
    """Keys and values of a batch of sequences; the decoder advances it in place. It carries no gradients.

    Every row grows by the same number of slots in a call; rows of different length are padded on the left, and padded
    slots have the document id -1.
    """

    def __init__(self, mixers: Sequence[Mixer], batch: int, capacity: int, shifted: int, like: Tensor) -> None:
        """Allocate for `capacity` slots a row; `shifted` channels are kept for the token shift (0: it is off).

        Buffers stand on the device of `like` and have its dtype. ValueError: batch or capacity below 1.
        """
        if batch < 1 or capacity < 1:
            raise ValueError(f"a cache needs at least 1 row and 1 slot; got batch {batch}, capacity {capacity}")
        self.capacity = capacity
        self.used = 0
        """Slots written; the same number as in `lengths`, but known without asking the device."""
        self.states = [mixer.new_state(batch, capacity, like.device, like.dtype) for mixer in mixers]
        self.previous = [like.new_zeros(batch, 1, shifted) for _ in mixers] if shifted else [None for _ in mixers]
        """Per layer [B, 1, W/2]: the last token's channels that the next token will read."""
        self.documents = torch.full((batch, capacity), -1, device=like.device)
        """[B, capacity]: document ids of the slots."""
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=like.device)
        """[B]: slots written."""
        self.real = torch.zeros_like(self.lengths)
        """[B]: tokens among them that are not padding, hence the position of the next token."""

    def extend(self, documents: Tensor) -> Tensor:
        """Take in the ids [B, T] of new tokens and return the ids [B, T] of the tokens before them (-2: none)."""
        documents = documents.long()
        batch, new = documents.shape
        rows, capacity = self.documents.shape
        if batch != rows:
            raise ValueError(f"the cache was made for {rows} rows; got tokens of {batch}")
        if self.used + new > capacity:
            raise ValueError(
                f"the cache has {capacity} slots, {self.used} of them full; {new} more tokens do not fit: "
                f"make it with a larger capacity"
            )
        last = (self.lengths - 1).clamp(min=0)[:, None]
        last_document = self.documents.gather(1, last).masked_fill(self.lengths[:, None] == 0, -2)
        slots = self.lengths[:, None] + torch.arange(new, device=documents.device)
        self.documents.scatter_(1, slots, documents)
        self.lengths += new
        self.real += (documents >= 0).sum(dim=1)
        self.used += new
        return torch.cat((last_document, documents[:, :-1]), dim=1)

    def rows(self, count: int) -> Self:
        """Give a cache of `count` rows that all remember what the only row of this one does; a copy."""
        if len(self.lengths) != 1:
            raise ValueError(f"only a cache of one row can be copied into several; this one has {len(self.lengths)}")
        wider = copy.copy(self)
        wider.states = [
            {name: kept.repeat_interleave(count, dim=0) for name, kept in state.items()} for state in self.states
        ]
        wider.previous = [None if kept is None else kept.repeat_interleave(count, dim=0) for kept in self.previous]
        for name in ("documents", "lengths", "real"):
            setattr(wider, name, getattr(self, name).repeat_interleave(count, dim=0))
        return wider
