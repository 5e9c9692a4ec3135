"""Weights that are exactly 0 for every logit below 0."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffattn.ops.rows import View
from diffattn.variants.base import Site, register
from diffattn.variants.entries import OneMapConfig, OneMapMixer
from diffattn.variants.parts import is_number


@register("expm1")
@dataclass(frozen=True, kw_only=True)
class Expm1(OneMapConfig):
    """max(0, exp(S) - 1), normalised: exact zeros, and nothing where no logit is positive."""

    eps: float = 1e-6
    """Added to the sum of a row."""

    def validate(self, site: Site) -> None:
        """Raise ValueError for an eps that would divide by 0."""
        super().validate(site)
        if not is_number(self.eps) or self.eps <= 0:
            raise ValueError(f"eps: got {self.eps!r}, needs a finite number above 0")

    def build(self, site: Site) -> "Expm1Mixer":
        """Validate and make the layer."""
        self.validate(site)
        return Expm1Mixer(self, site)


class Expm1Mixer(OneMapMixer):
    """out_h = (e_h / (eps + sum e_h)) v_g, e_h = max(0, exp(q_h k_g^T / sqrt(D)) - 1); weights start as the baseline's.

    Numerator and denominator are multiplied by exp(-m), m = max(0, largest logit of the row), so that none overflows.
    """

    def __init__(self, config: Expm1, site: Site) -> None:
        super().__init__(config, site)
        self.eps = config.eps

    def weights(self, logits: Tensor, view: View) -> Tensor:
        """Give the map [B, H, T, S]."""
        logits = view.hide(view.biased(logits), torch.finfo(logits.dtype).min)
        # The quotient does not depend on m, so its gradient need not flow through it.
        m = logits.detach().amax(-1, keepdim=True).clamp(min=0)
        kept = ((logits - m).exp() - (-m).exp()).relu()
        return kept / (self.eps * (-m).exp() + kept.sum(-1, keepdim=True))
