"""A learned non-linear combination of all heads' maps, at each query and key by itself."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffattn.ops.rows import View, across_heads
from diffattn.variants.base import Draw, Site, register
from diffattn.variants.entries import OneMapConfig, OneMapMixer
from diffattn.variants.parts import fill


@register("map_mix_mlp")
@dataclass(frozen=True, kw_only=True)
class MapMixMlp(OneMapConfig):
    """(A + f(A)) V, f a small network over the heads at each (query, key): the non-linear `map_mix`."""

    @property
    def hidden(self) -> int:
        """Width of the network's hidden layer."""
        return 4 * self.heads

    def vectors(self, site: Site) -> int:
        """Count the parameters beside the projections: the two matrices of the network."""
        return 2 * self.hidden * self.heads

    def multiplications(self) -> int:
        """Count those that the two matrices of the network take, for each head's entry."""
        return 2 * self.hidden

    def build(self, site: Site) -> "MapMixMlpMixer":
        """Validate and make the layer."""
        self.validate(site)
        return MapMixMlpMixer(self, site)


class MapMixMlpMixer(OneMapMixer):
    """out_i = (A_i + sum_m O_im gelu(sum_j I_mj A_j)) v_{i // n}, n = H / G, A_j = softmax(q_j k_{j // n}^T / sqrt(D)).

    Without biases f(0) = 0, so that a key which no head may attend keeps weight exactly 0.
    """

    def __init__(self, config: MapMixMlp, site: Site) -> None:
        super().__init__(config, site)
        self.mix_in = nn.Parameter(torch.empty(config.hidden, config.heads))
        self.mix_out = nn.Parameter(torch.empty(config.heads, config.hidden))

    def weights(self, logits: Tensor, view: View) -> Tensor:
        """Give the mixed maps [B, H, T, S]; hidden entries are 0 in all of them."""
        maps = view.softmax(logits)
        return maps + across_heads(self.mix_out, F.gelu(across_heads(self.mix_in, maps)))

    def init_weights(self, draw: Draw) -> None:
        """Fill the projections as `ProjectedMixer.init_weights` does; the first matrix of the network with
        N(0, 1/heads), the last with 0: softmax at the start."""
        super().init_weights(draw)
        fill(self.mix_in, draw.normal("mix_in", self.mix_in.shape, self.heads**-0.5))
        nn.init.zeros_(self.mix_out)
