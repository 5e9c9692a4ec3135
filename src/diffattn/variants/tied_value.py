"""Ordinary attention that subtracts: two heads with one value, and an output matrix with a fixed sign."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from diffattn.ops import attention, diff_attention_maps
from diffattn.variants.base import Branch, Cost, Site, Where, register
from diffattn.variants.parts import (
    HeadsConfig,
    ProjectedMixer,
    is_number,
    layer_cost,
    pairs,
    projection_weights,
    training_flops,
)


@register("tied_value")
@dataclass(frozen=True, kw_only=True)
class TiedValue(HeadsConfig):
    """2H heads of D, V (2D) tied within a pair, the output matrix of the second of them -c times that of the first.

    y = sum over h of W_o,h A(q_2h, k_2g) v_g - c W_o,h A(q_2h+1, k_2g+1) v_g: nothing but attention with shared
    weights, yet the function of `diff_fixed` without its norm, if its W_o is 1 / (1 - c) times this one. So what
    differential attention adds lies elsewhere.
    """

    heads: int = 4
    """Output heads, each of a pair of maps; a Transformer of the same cost has twice as many."""
    c: float = 0.5
    """What multiplies the second map of each pair."""

    values_per_key: ClassVar[int] = 2

    def validate(self, site: Site) -> None:
        """Raise ValueError for heads that do not divide and a c that is no number."""
        super().validate(site)
        if not is_number(self.c):
            raise ValueError(f"c: got {self.c!r}, needs a finite number")

    def cost(self, site: Site) -> Cost:
        """Give parameters, FLOPs and cache of the layer at this site."""
        self.validate(site)
        matrices = projection_weights(self, site, 2 * self.heads, 2 * self.groups)
        algebra, _ = training_flops(self, site, maps=2)
        _, of_one = training_flops(self, site, maps=1)
        return layer_cost(matrices, 0, (algebra, 2 * of_one), 4 * self.groups * self.key_dim(site))

    def build(self, site: Site) -> "TiedValueMixer":
        """Validate and make the layer."""
        self.validate(site)
        return TiedValueMixer(self, site)


class TiedValueMixer(ProjectedMixer):
    """W_o (o1 - c o2) of the reads o1, o2 of all pairs; weights start as V1's."""

    def __init__(self, config: TiedValue, site: Site) -> None:
        super().__init__(config, site, queries=2 * config.heads, keys=2 * config.groups)
        self.c = config.c

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W]; see `Mixer.forward`."""
        q, k, v = self.read(x, where, state)
        given = where.restrictions()
        first, second = (attention(q, k, v, **given, impl=self.impl) for q, k in zip(pairs(q), pairs(k), strict=True))
        # As the output map is linear, one product serves both.
        return self.write(first - self.c * second)

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give A1 with coefficient 1 and A2 with coefficient -c."""
        q, k, _ = self.read(x, where, None)
        (q1, q2), (k1, k2) = pairs(q), pairs(k)
        first, second = diff_attention_maps(q1, k1, q2, k2, **where.restrictions())
        one = first.new_ones(())
        return [Branch("A1", one, first), Branch("A2", -self.c * one, second)]

    def logit_factors(self, x: Tensor, where: Where) -> list[tuple[Tensor, Tensor]]:
        """Give queries / sqrt(D) and keys of both maps."""
        ((q, k),) = super().logit_factors(x, where)
        return list(zip(pairs(q), pairs(k), strict=True))
