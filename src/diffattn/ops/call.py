"""One checked call of an operator, in the form that every implementation takes.

An implementation is a module of this package with three functions:

- `unavailable() -> str | None`: why it cannot run on this machine;
- `refuses(call) -> str | None`: why it cannot serve this call, as the end of a sentence for the user;
- `run(call) -> Tensor`: the result, [B, H, T, E], in the queries' dtype or wider; with a norm only if `FUSES_NORM`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from diffattn.ops.masks import Restrictions


def transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work, whose rules fused kernels do not have."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


@dataclass(frozen=True)
class Norm:
    """gain * RMSNorm over the E channels of a head and token, behind the attention."""

    weight: Tensor | None
    """[E], or None: no learned scale."""
    eps: float | None
    """Added to the mean square; None: no norm, the gain alone."""
    gain: float


@dataclass(frozen=True)
class Call:
    """Letters as in `diffattn.ops`; one map is `attention`, two are `diff_attention`."""

    queries: tuple[Tensor, ...]
    """[B, H, T, D], one for each map."""
    keys: tuple[Tensor, ...]
    """[B, G, S, D], one for each map; the second may be the very same tensor (version 2)."""
    v: Tensor
    """[B, G, S, E]."""
    lam: float | Tensor
    """Of two maps: a number, or a tensor broadcastable to [B, H, T, 1], float32 (float64 for float64 queries)."""
    sink: Tensor | None
    """Of one map: [H], a logit that takes weight and adds nothing."""
    given: Restrictions
    scale: float
    norm: Norm | None = None

    @property
    def maps(self) -> int:
        """1 or 2."""
        return len(self.queries)
