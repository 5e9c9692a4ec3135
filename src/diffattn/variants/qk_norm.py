"""Softmax of cosines between queries and keys."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffattn.variants.base import Draw, Site, register
from diffattn.variants.parts import wide
from diffattn.variants.softmax import Softmax, SoftmaxMixer


@register("qk_norm")
@dataclass(frozen=True, kw_only=True)
class QkNorm(Softmax):
    """softmax(g cos(q, k)) V with g learned for each head (arXiv 2010.04245)."""

    def validate(self, site: Site) -> None:
        """Raise ValueError for a temperature beside g, and for a context that gives g no start."""
        super().validate(site)
        if self.temperature:
            raise ValueError("temperature: qk_norm has a factor g for each head already; leave it out")
        if self.query_key_norm:
            raise ValueError("query_key_norm: qk_norm divides queries and keys by their lengths already; leave it out")
        if site.context < 2:
            raise ValueError(
                f"context: got {site.context}, qk_norm starts g at log2(L^2 - L) and needs L of at least 2"
            )

    def vectors(self, site: Site) -> int:
        """Count the parameters beside the matrices: g too."""
        return super().vectors(site) + self.heads

    def build(self, site: Site) -> "QkNormMixer":
        """Validate and make the layer."""
        self.validate(site)
        return QkNormMixer(self, site)


class QkNormMixer(SoftmaxMixer):
    """As `SoftmaxMixer`, logits g_h cos(q_h, k_g); lengths are taken before positions are put in."""

    scale = 1.0

    def __init__(self, config: QkNorm, site: Site) -> None:
        super().__init__(config, site)
        self.gain = nn.Parameter(torch.empty(config.heads))

    def before_positions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Give queries of length g and keys of length 1."""
        scaled = F.normalize(wide(q), dim=-1) * self.gain[:, None, None]
        return scaled.to(q.dtype), F.normalize(wide(k), dim=-1).to(k.dtype)

    def init_weights(self, draw: Draw) -> None:
        """Fill g with log2(L^2 - L), L = context; the rest as in `SoftmaxMixer`."""
        super().init_weights(draw)
        nn.init.constant_(self.gain, math.log2(self.site.context**2 - self.site.context))
