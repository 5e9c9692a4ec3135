"""Differential extension: a pretrained softmax layer that learns to subtract from its own outputs."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from diffattn.variants.base import Cost, Draw, Site, register
from diffattn.variants.parts import is_number, wide
from diffattn.variants.softmax import Softmax, SoftmaxMixer


@register("dex")
@dataclass(frozen=True, kw_only=True)
class Dex(Softmax):
    """o - λ(t) o W_D on heads of a pretrained softmax, W_D learned (arXiv 2505.16333); trains from a loaded model."""

    trains: ClassVar[tuple[str, ...]] = ("w_d", "lam_learned")

    lambda_init: float = 0.8
    """Height of the ramp that starts W_D: λ(t) has lambda_init / 4 of it halfway through training, 0 at both ends."""
    dex_heads: tuple[int, ...] | None = None
    """Numbers, from 0, of the output heads that are corrected; None: all."""

    def __post_init__(self) -> None:
        if self.dex_heads is not None:
            object.__setattr__(self, "dex_heads", tuple(self.dex_heads))  # a list where it comes from JSON

    @property
    def corrected(self) -> tuple[int, ...]:
        """Numbers of the corrected heads."""
        return tuple(range(self.heads)) if self.dex_heads is None else self.dex_heads

    def validate(self, site: Site) -> None:
        """Raise ValueError as `Softmax.validate`, and for heads that are not there."""
        super().validate(site)
        if not is_number(self.lambda_init):
            raise ValueError(f"lambda_init: got {self.lambda_init!r}, needs a finite number")
        chosen = self.corrected
        if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(self.heads)):
            raise ValueError(f"dex_heads: got {chosen}, needs different heads out of 0 to {self.heads - 1}, or None")

    def cost(self, site: Site) -> Cost:
        """Give parameters, FLOPs and cache of the layer at this site; W_D is multiplied by every corrected head."""
        plain, matrix = super().cost(site), self.key_dim(site) ** 2
        more = 6 * len(self.corrected) * matrix
        return replace(
            plain,
            parameters=plain.parameters + matrix + 1,
            flops_algebra=plain.flops_algebra + more,
            flops_executed=plain.flops_executed + more,
        )

    def build(self, site: Site) -> "DexMixer":
        """Validate and make the layer."""
        self.validate(site)
        return DexMixer(self, site)


class DexMixer(SoftmaxMixer):
    """As `SoftmaxMixer`, its heads (behind their norm) o' = o - λ(t) o W_D, λ(t) = (1 - t) t lambda_init + t λ_learned.

    t, the share of the training's steps that lies behind, is the buffer `progress`: it is saved with the weights, so
    that a model computes what it computed when it was trained. At t = 0 nothing is changed. The ramp (1 - t) t moves
    W_D, whose gradient is 0 while λ is; W_D moves λ_learned, whose gradient is 0 while W_D is.
    """

    correction: ClassVar[tuple[str, ...]] = (*Dex.trains, "progress")
    """What the layer has beside the softmax layer that it extends."""
    progress: Tensor

    def __init__(self, config: Dex, site: Site) -> None:
        super().__init__(config, site)
        self.lambda_init, self.corrected = config.lambda_init, config.corrected
        self.w_d = nn.Parameter(torch.empty(self.value_dim, self.value_dim))
        self.lam_learned = nn.Parameter(torch.empty(()))
        self.register_buffer("progress", torch.empty(()))

    def write(self, heads: Tensor) -> Tensor:
        """Correct the output heads [B, H, T, E] and map them back to [B, T, W]."""
        if len(self.corrected) == self.heads:
            return super().write(heads - self._taken(heads))
        chosen = torch.tensor(self.corrected, device=heads.device)
        return super().write(heads.index_add(1, chosen, self._taken(heads.index_select(1, chosen)), alpha=-1))

    @torch.no_grad()
    def folded(self) -> Tensor:
        """Give the output matrix [W, H * E] with which a softmax layer computes the same: W_O (I - λ(t) W_D) for the
        corrected heads; float64."""
        heads = self.o.weight.to(torch.float64, copy=True).unflatten(1, (self.heads, self.value_dim))
        identity = torch.eye(self.value_dim, dtype=heads.dtype, device=heads.device)
        kept = identity - self._lam().to(heads.dtype) * self.w_d.to(heads.dtype)
        chosen = list(self.corrected)
        # A head o is multiplied by [W, E]^T, behind the correction.
        heads[:, chosen] = heads[:, chosen] @ kept.T
        return heads.flatten(1)

    def lam(self, x: Tensor) -> Tensor:
        """Give λ(t), a scalar; float32 whatever the stored dtype."""
        return self._lam()

    def advance(self, share: float) -> None:
        """Take note of t."""
        self.progress.fill_(share)

    def init_weights(self, draw: Draw) -> None:
        """Fill W_D, λ_learned and t with 0; the rest as in `SoftmaxMixer`."""
        super().init_weights(draw)
        for zero in (self.w_d, self.lam_learned, self.progress):
            nn.init.zeros_(zero)

    def _taken(self, heads: Tensor) -> Tensor:
        return (self._lam() * (heads @ self.w_d)).to(heads.dtype)

    def _lam(self) -> Tensor:
        share = wide(self.progress)
        return (1 - share) * share * self.lambda_init + share * wide(self.lam_learned)
