"""The difference of one learned map and the uniform one."""

from dataclasses import dataclass

from torch import Tensor

from diffattn.variants.base import Draw, Site, Where, register
from diffattn.variants.diff_v1 import DiffV1, DiffV1Mixer, drawn_pairs, refuse_options
from diffattn.variants.parts import fill, training_flops


@register("diff_uniform")
@dataclass(frozen=True, kw_only=True)
class DiffUniform(DiffV1):
    """A1 - λ / (keys visible): is a second LEARNED map needed?

    head_h = (1 - lambda_init) RMSNorm((A1 - λ U) v_g), V1's otherwise; U is the map of a zero query, so that a position
    bias or an additive mask, which stand behind the logits, act on it too: it is uniform without them.
    """

    def validate(self, site: Site) -> None:
        """Raise ValueError for heads that do not divide and for options without meaning."""
        refuse_options(self, "equal_maps", why="whose second map has no weights")
        super().validate(site)

    def map_heads(self) -> tuple[int, int]:
        """Count the query heads and the key heads: those of the first map."""
        return self.heads, self.groups

    def attention_flops(self, site: Site) -> tuple[int, int]:
        """Count the FLOPs per token of the products with keys and values: (algebra, executed)."""
        algebra, _ = training_flops(self, site, maps=1)
        both, executed = training_flops(self, site, maps=2)
        # The reference leaves out the gradient of queries that have none; fused implementations do not.
        unneeded = 2 * self.heads * site.context * self.key_dim(site) if executed == both else 0
        return algebra, executed - unneeded

    def build(self, site: Site) -> "DiffUniformMixer":
        """Validate and make the layer."""
        self.validate(site)
        return DiffUniformMixer(self, site)


class DiffUniformMixer(DiffV1Mixer):
    """V1 whose second queries are 0, against the first keys."""

    def both_maps(self, q: Tensor, k: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Give the queries and zeros, each [B, H, T, D], and twice the keys [B, G, S, D]."""
        return (q, q.new_zeros(q.shape)), (k, k)

    def logit_factors(self, x: Tensor, where: Where) -> list[tuple[Tensor, Tensor]]:
        """Give queries / sqrt(D) and keys of the first map; the second has no logits."""
        return super().logit_factors(x, where)[:1]

    def init_weights(self, draw: Draw) -> None:
        """Fill every parameter as V1 does; queries and keys are those of V1's first maps."""
        super().init_weights(draw)
        for role, part in (("q", self.q), ("k", self.k)):
            fill(part.weight, drawn_pairs(draw, role, part, self.head_dim)[0])
