"""A learned linear combination of all heads' maps: what every difference of maps is a case of."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from diffattn.ops.rows import View, across_heads
from diffattn.variants.base import Draw, Site, register
from diffattn.variants.entries import OneMapConfig, OneMapMixer
from diffattn.variants.parts import check_choice, fill, wide

Start = Literal["identity", "uniform", "random"]


@register("map_mix")
@dataclass(frozen=True, kw_only=True)
class MapMix(OneMapConfig):
    """out_i = (sum_j M_ij A_j) V_i over all heads j, M learned: post-softmax talking heads (arXiv 2003.02436)."""

    start: Start = "identity"
    """M at the start: the identity (then this is softmax), 1 / heads everywhere, or N(0, 1 / heads) entries."""
    rows_sum_to_one: bool = False
    """Use M + (1 - row sum) / heads, the nearest matrix whose rows sum to 1: finite for every M, of any sign."""

    def validate(self, site: Site) -> None:
        """Raise ValueError for heads that do not divide and an unknown start."""
        super().validate(site)
        check_choice("start", self.start, Start)

    def vectors(self, site: Site) -> int:
        """Count the parameters beside the projections: M."""
        return self.heads**2

    def multiplications(self) -> int:
        """Count those of an entry with a column of M."""
        return self.heads

    def build(self, site: Site) -> "MapMixMixer":
        """Validate and make the layer."""
        self.validate(site)
        return MapMixMixer(self, site)


class MapMixMixer(OneMapMixer):
    """out_i = (sum_j M_ij softmax(q_j k_{j // n}^T / sqrt(D))) v_{i // n}, n = H / G.

    Differential attention without a norm is the case of row pairs (+1, -λ), in which the heads i and i' of a pair read
    the two halves of its value.
    """

    def __init__(self, config: MapMix, site: Site) -> None:
        super().__init__(config, site)
        self.start, self.rows_sum_to_one = config.start, config.rows_sum_to_one
        self.mix = nn.Parameter(torch.empty(config.heads, config.heads))

    def mixing(self) -> Tensor:
        """Give M [H, H] as it is applied, in float32 or float64."""
        mix = wide(self.mix)
        return mix + (1 - mix.sum(-1, keepdim=True)) / self.heads if self.rows_sum_to_one else mix

    def weights(self, logits: Tensor, view: View) -> Tensor:
        """Give the mixed maps [B, H, T, S]; hidden entries are 0 in all of them."""
        return across_heads(self.mixing(), view.softmax(logits))

    def init_weights(self, draw: Draw) -> None:
        """Fill the projections as `ProjectedMixer.init_weights` does; M as `start` says."""
        super().init_weights(draw)
        if self.start == "identity":
            nn.init.eye_(self.mix)
        elif self.start == "uniform":
            nn.init.constant_(self.mix, 1 / self.heads)
        else:
            fill(self.mix, draw.normal("mix", self.mix.shape, self.heads**-0.5))
