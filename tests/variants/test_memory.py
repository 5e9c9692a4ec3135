"""Layers whose maps no fused operator computes still need memory that grows with tokens, not with their square."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import support.mixers as small
from diffattn.ops import rows
from diffattn.variants import get, names

BY_ROWS = [name for name in names() if get(name).implementations == ("reference",)]
TILE = 2**15
"""Entries of the maps of one tile: 16 queries of 4 heads at 512 keys."""


class Held(TorchDispatchMode):
    """The largest tensor that any operation made, in elements, and the most bytes that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.most = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                # A view may be expanded; what it lies on is what is held.
                self.largest = max(self.largest, storage.nbytes() // x.element_size())
        self._alive = {at: (ref, size) for at, (ref, size) in self._alive.items() if not ref.expired()}
        self.most = max(self.most, sum(size for _, size in self._alive.values()))
        return out


def trained(name: str, tokens: int) -> Held:
    """One forward and backward pass of a layer over packed documents, with a distance bias."""
    mixer = small.stirred_mixer_of(name, torch.float32)
    x = small.tokens_of(1, tokens, torch.float32).requires_grad_()
    documents = torch.arange(tokens)[None] // 200
    where = small.where_of(mixer, tokens, documents=documents, alibi=torch.tensor([0.5, 0.25, 0.1, 0.3]))
    with Held() as held:
        mixer(x, where).sum().backward()
    return held


@pytest.mark.parametrize("name", BY_ROWS)
def test_memory_grows_with_tokens_not_with_their_square(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ELEMENTS", TILE)
    half, full = trained(name, 256), trained(name, 512)
    assert full.largest < 512 * 512
    # Tiles take the same at both lengths; what remains for each token is some 6 vectors of the model's width. A mask of
    # one byte for each query and key would take 6 more.
    vector = 4 * small.WIDTH
    assert full.most - half.most < 9 * 256 * vector
