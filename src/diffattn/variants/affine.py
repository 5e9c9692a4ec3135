"""Softmax weights moved to the range from -1 to 1: is it only the range that differential attention gains?"""

from dataclasses import dataclass

from torch import Tensor

from diffattn.ops.rows import View
from diffattn.variants.base import Site, register
from diffattn.variants.entries import OneMapConfig, OneMapMixer


@register("affine")
@dataclass(frozen=True, kw_only=True)
class Affine(OneMapConfig):
    """(2 A - 1) V over the visible keys: weights from -1 to 1 out of one map."""

    def build(self, site: Site) -> "AffineMixer":
        """Validate and make the layer."""
        self.validate(site)
        return AffineMixer(self, site)


class AffineMixer(OneMapMixer):
    """out_h = (2 softmax(q_h k_g^T / sqrt(D)) - 1) v_g; weights start as the baseline's."""

    def weights(self, logits: Tensor, view: View) -> Tensor:
        """Give the map [B, H, T, S]."""
        return view.hide(2 * view.softmax(logits) - 1)
