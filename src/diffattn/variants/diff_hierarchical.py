"""A second map whose queries know what the first one read."""

from dataclasses import dataclass

from torch import Tensor, nn

from diffattn.ops import attention, attention_maps
from diffattn.ops.positions import apply_rotary
from diffattn.ops.reference import grouped_product
from diffattn.variants.base import Branch, Draw, Site, Where, register
from diffattn.variants.diff_factored import DiffFactoredMixer
from diffattn.variants.diff_v1 import DiffV1, drawn_pairs, refuse_options
from diffattn.variants.parts import fill, pairs, training_flops


@register("diff_hierarchical")
@dataclass(frozen=True, kw_only=True)
class DiffHierarchical(DiffV1):
    """A1 - λ A2, the second queries projected from x + o1, the first read; twice the latency.

    o1 = A1 V of all heads side by side, q2 = (x + o1) W_q2, head_h = (1 - lambda_init) RMSNorm(o1_h - λ A2 v_g): "the
    second map must know what the first attended to". The second read waits for the first. Its parameters are V1's.
    """

    def validate(self, site: Site) -> None:
        """Raise ValueError where the heads do not fill the width, and for options without meaning."""
        refuse_options(self, "equal_maps", "biases", why="whose second queries are made from other numbers")
        super().validate(site)
        filled = self.heads * 2 * self.key_dim(site)
        if filled != site.width:
            raise ValueError(
                f"{self.name}: {self.heads} heads of 2 x {self.key_dim(site)} are {filled} channels, needs the width, "
                f"{site.width}, as the first read is added to the tokens; leave out head_dim, or change heads"
            )

    def attention_flops(self, site: Site) -> tuple[int, int]:
        """Count the FLOPs per token of the products with keys and values: (algebra, executed)."""
        algebra, executed = training_flops(self, site, maps=1)
        return 2 * algebra, 2 * executed

    def build(self, site: Site) -> "DiffHierarchicalMixer":
        """Validate and make the layer."""
        self.validate(site)
        return DiffHierarchicalMixer(self, site)


class DiffHierarchicalMixer(DiffFactoredMixer):
    """head_h = (1 - lambda_init) RMSNorm(A1 v_g - λ A2 v_g), q2 from x + A1 V; keys 2g, 2g + 1 are a pair."""

    def __init__(self, config: DiffHierarchical, site: Site) -> None:
        super().__init__(config, site)
        self.queries = config.heads
        self.q, self.q2 = (nn.Linear(site.width, config.heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W]; see `Mixer.forward`. Decoding needs the first read of the new tokens alone."""
        (_, q2), (_, k2), v, first = self._first_read(x, where, state)
        second = attention(q2, k2, v, **where.restrictions(), impl=self.impl)
        return self.write(self.subtract(first, second, self._broadcast(self.lam(x))))

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give A1 with coefficient 1 and A2 with coefficient -λ; the norm behind them is left out."""
        q1, k, v = self.read(x, where, None)
        k1, k2 = pairs(k)
        first = attention_maps(q1, k1, **where.restrictions())
        q2 = self._second_queries(x, grouped_product(first, v.to(first.dtype)).to(v.dtype), where)
        second = attention_maps(q2, k2, **where.restrictions())
        return [Branch("A1", first.new_ones(()), first), Branch("A2", -self._broadcast(self.lam(x)), second)]

    def logit_factors(self, x: Tensor, where: Where) -> list[tuple[Tensor, Tensor]]:
        """Give queries / sqrt(D) and keys of both maps."""
        queries, keys, _, _ = self._first_read(x, where, None)
        return [(q * self.head_dim**-0.5, k) for q, k in zip(queries, keys, strict=True)]

    def init_weights(self, draw: Draw) -> None:
        """Fill every parameter as V1 does: q with its first queries, q2 with its second ones."""
        super().init_weights(draw)
        for part, values in zip((self.q, self.q2), drawn_pairs(draw, "q", self.q, self.head_dim), strict=True):
            fill(part.weight, values)

    def _first_read(
        self, x: Tensor, where: Where, state: dict[str, Tensor] | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor, Tensor]:
        """Give the queries of both maps [B, H, T, D], their keys [B, G, S, D], v and o1 [B, H, T, E]."""
        q1, k, v = self.read(x, where, state)
        k1, k2 = pairs(k)
        first = attention(q1, k1, v, **where.restrictions(), impl=self.impl)
        return (q1, self._second_queries(x, first, where)), (k1, k2), v, first

    def _second_queries(self, x: Tensor, first: Tensor, where: Where) -> Tensor:
        """Give the queries of the second map [B, H, T, D] from the first read [B, H, T, E]."""
        q2 = self.q2(x + first.transpose(1, 2).flatten(2)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return q2 if where.positions is None else apply_rotary(q2, *where.positions)
