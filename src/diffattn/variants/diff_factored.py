"""Version 1 with the difference taken behind the products with V."""

from dataclasses import dataclass

from torch import Tensor

from diffattn.ops import attention
from diffattn.variants.base import Site, Where, register
from diffattn.variants.diff_v1 import DiffV1, DiffV1Mixer
from diffattn.variants.parts import training_flops, wide


@register("diff_factored")
@dataclass(frozen=True, kw_only=True)
class DiffFactored(DiffV1):
    """A1 V, then - λ A2 V as a second term: version 1's function in two reads.

    head_h = (1 - lambda_init) RMSNorm(A1 v_g - λ A2 v_g), equal to V1 to rounding, with more arithmetic. Weights start
    as V1's.
    """

    def attention_flops(self, site: Site) -> tuple[int, int]:
        """Count the FLOPs per token of the products with keys and values: (algebra, executed)."""
        algebra, _ = training_flops(self, site, maps=2)
        _, of_one = training_flops(self, site, maps=1)
        return algebra, 2 * of_one

    def build(self, site: Site) -> "DiffFactoredMixer":
        """Validate and make the layer."""
        self.validate(site)
        return DiffFactoredMixer(self, site)


class DiffFactoredMixer(DiffV1Mixer):
    """head_h = (1 - lambda_init) RMSNorm(A1 v_g - λ A2 v_g)."""

    def attend(
        self, q: tuple[Tensor, Tensor], k: tuple[Tensor, Tensor], v: Tensor, lam: Tensor, where: Where
    ) -> Tensor:
        """Give the output heads [B, H, T, E], norm and gain included."""
        given = where.restrictions()
        first, second = (attention(*of_map, v, **given, impl=self.impl) for of_map in zip(q, k, strict=True))
        return self.subtract(first, second, lam)

    def subtract(self, first: Tensor, second: Tensor, lam: Tensor) -> Tensor:
        """Give the output heads of the two reads, each [B, H, T, E]."""
        heads = wide(first) - lam * wide(second)
        return self.norm_heads(heads, 1.0 - self.lambda_init).to(first.dtype)
