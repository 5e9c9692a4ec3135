"""Attention without the softmax."""

from dataclasses import dataclass

from torch import Tensor

from diffattn.ops.rows import View
from diffattn.variants.base import Site, register
from diffattn.variants.entries import OneMapConfig, OneMapMixer


@register("linear")
@dataclass(frozen=True, kw_only=True)
class Linear(OneMapConfig):
    """S V / (keys visible): "just remove the softmax"."""

    def build(self, site: Site) -> "LinearMixer":
        """Validate and make the layer."""
        self.validate(site)
        return LinearMixer(self, site)


class LinearMixer(OneMapMixer):
    """out_h = (q_h k_g^T / sqrt(D)) v_g / (keys visible); weights start as the baseline's."""

    def weights(self, logits: Tensor, view: View) -> Tensor:
        """Give the map [B, H, T, S]."""
        return view.hide(view.biased(logits)) / view.count(logits)
