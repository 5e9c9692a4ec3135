"""Starting values that arms of different shape share, so that comparisons start in pairs."""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Draw:
    """Normal numbers keyed by a seed and a role: the same role gives the same numbers in every arm.

    The first axis is the one that grows: the smaller of two draws of one role is the beginning of the larger. So heads,
    or channels of a feed-forward, that two arms have in common start equal, and the others do not disturb them.
    """

    def __init__(self, seed: int, prefix: str = "") -> None:
        self.seed = seed
        self.prefix = prefix

    def at(self, part: str) -> "Draw":
        """Narrow the roles to one part of the model, such as "layers.0"."""
        return Draw(self.seed, f"{self.prefix}{part}/")

    def normal(self, role: str, shape: Sequence[int], std: float) -> Tensor:
        """Give float32 values of N(0, std) on the CPU, the same on every machine."""
        digest = hashlib.sha256(f"{self.seed}:{self.prefix}{role}".encode()).digest()
        stream = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16])))
        values = stream.standard_normal(math.prod(shape), dtype=np.float32)
        return torch.from_numpy(values).reshape(*shape).mul_(std)
