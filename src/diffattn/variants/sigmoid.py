"""Attention without normalisation: a sigmoid of each logit."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffattn.ops.rows import View
from diffattn.variants.base import Draw, Site, register
from diffattn.variants.entries import OneMapConfig, OneMapMixer


@register("sigmoid")
@dataclass(frozen=True, kw_only=True)
class Sigmoid(OneMapConfig):
    """sigmoid(S + b) V: no normalisation; b per head starts at -log(context) (arXiv 2409.04431)."""

    def vectors(self, site: Site) -> int:
        """Count the parameters beside the projections: b."""
        return self.heads

    def build(self, site: Site) -> "SigmoidMixer":
        """Validate and make the layer."""
        self.validate(site)
        return SigmoidMixer(self, site)


class SigmoidMixer(OneMapMixer):
    """out_h = sigmoid(q_h k_g^T / sqrt(D) + b_h) v_g."""

    def __init__(self, config: Sigmoid, site: Site) -> None:
        super().__init__(config, site)
        self.bias = nn.Parameter(torch.empty(config.heads))

    def weights(self, logits: Tensor, view: View) -> Tensor:
        """Give the map [B, H, T, S]."""
        return view.hide(view.biased(logits + self.bias[:, None, None]).sigmoid())

    def init_weights(self, draw: Draw) -> None:
        """Fill the projections as `ProjectedMixer.init_weights` does; b with -log(context), so that rows sum to 1 when
        all logits are 0."""
        super().init_weights(draw)
        nn.init.constant_(self.bias, -math.log(self.site.context))
