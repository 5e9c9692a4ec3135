"""The difference of two maps without its negative part."""

from dataclasses import dataclass

from torch import Tensor

from diffattn.variants.base import Site, register
from diffattn.variants.entries import BracketConfig, BracketMixer


@register("diff_relu")
@dataclass(frozen=True, kw_only=True)
class DiffRelu(BracketConfig):
    """max(0, A1 - λ A2): exact zeros where the second map is larger."""

    renormalise: bool = False
    """Divide each row by its sum, where that is not 0."""

    def build(self, site: Site) -> "DiffReluMixer":
        """Validate and make the layer."""
        self.validate(site)
        return DiffReluMixer(self, site)


class DiffReluMixer(BracketMixer):
    """head_h = (1 - lambda_init) RMSNorm(max(0, A1 - λ A2) v_g); weights start as V1's."""

    def __init__(self, config: DiffRelu, site: Site) -> None:
        super().__init__(config, site)
        self.renormalise = config.renormalise

    def bracket(self, first: Tensor, second: Tensor, lam: Tensor) -> Tensor:
        """Give max(0, A1 - λ A2), [B, H, T, S]."""
        kept = (first - lam * second).relu()
        if not self.renormalise:
            return kept
        total = kept.sum(-1, keepdim=True)
        return kept / total.masked_fill(total == 0, 1.0)
