"""One softmax whose logits a second set of logits gates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffattn.ops.call import Norm
from diffattn.ops.masks import Restrictions
from diffattn.ops.reference import grouped_product, normed
from diffattn.ops.rows import View, by_rows
from diffattn.variants.base import Branch, Cost, Draw, Site, Where, register
from diffattn.variants.entries import EntryMixer, entry_flops
from diffattn.variants.parts import (
    HeadsConfig,
    check_eps,
    layer_cost,
    pairs,
    projection_weights,
    wide,
)


@register("gated_logsigmoid")
@dataclass(frozen=True, kw_only=True)
class GatedLogsigmoid(HeadsConfig):
    """softmax(a S1 - logsigmoid(b S2)) V: the second logits gate the first, inside one softmax."""

    heads: int = 4
    """Output heads; a Transformer of the same cost has twice as many."""
    norm: bool = True
    """RMSNorm over each head's output, one weight vector shared by all heads, as in version 1."""
    norm_eps: float = 1e-5
    """Added to the mean square in that norm."""

    implementations: ClassVar[tuple[str, ...] | None] = ("reference",)
    values_per_key: ClassVar[int] = 2

    def validate(self, site: Site) -> None:
        """Raise ValueError for heads that do not divide and a norm that would divide by 0."""
        super().validate(site)
        check_eps(self.norm_eps)

    def cost(self, site: Site) -> Cost:
        """Give parameters, FLOPs and cache of the layer at this site."""
        self.validate(site)
        matrices = projection_weights(self, site, 2 * self.heads, 2 * self.groups)
        vectors = 2 * self.heads + 2 * self.key_dim(site) * self.norm
        return layer_cost(matrices, vectors, entry_flops(self, site, maps=2), 4 * self.groups * self.key_dim(site))

    def build(self, site: Site) -> "GatedLogsigmoidMixer":
        """Validate and make the layer."""
        self.validate(site)
        return GatedLogsigmoidMixer(self, site)


class GatedLogsigmoidMixer(EntryMixer):
    """out_h = RMSNorm(softmax(a_h S1 - logsigmoid(b_h S2)) v_g), with version 1's pairs of queries and keys.

    There is no λ, and so no gain 1 - lambda_init.
    """

    norm_weight: nn.Parameter | None

    def __init__(self, config: GatedLogsigmoid, site: Site) -> None:
        super().__init__(config, site, queries=2 * config.heads, keys=2 * config.groups)
        self.a, self.b = nn.Parameter(torch.empty(config.heads)), nn.Parameter(torch.empty(config.heads))
        self.norm_eps = config.norm_eps if config.norm else None
        self.norm_weight = nn.Parameter(torch.empty(self.value_dim)) if config.norm else None

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W]; see `Mixer.forward`."""
        q, k, v = self.read(x, where, state)

        def attend(rows: Sequence[Tensor], shared: Sequence[Tensor], view: View) -> Tensor:
            return grouped_product(self._map(rows, shared[0], view), shared[1])

        given = Restrictions(**where.restrictions())
        heads = by_rows(attend, pairs(q), [wide(k), wide(v)], given, (self.a, self.b))
        return self.write(normed(heads, Norm(self.norm_weight, self.norm_eps, 1.0)).to(v.dtype))

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give the one map, A; the norm behind it is left out."""
        q, k, _ = self.read(x, where, None)

        def look(rows: Sequence[Tensor], shared: Sequence[Tensor], view: View) -> Tensor:
            return self._map(rows, shared[0], view)

        found = by_rows(look, pairs(q), [wide(k)], Restrictions(**where.restrictions()), (self.a, self.b))
        return [Branch("A", found.new_ones(()), found)]

    def logit_factors(self, x: Tensor, where: Where) -> list[tuple[Tensor, Tensor]]:
        """Give queries and keys of a S1 and of b S2."""
        ((q, k),) = super().logit_factors(x, where)
        (q1, q2), (k1, k2) = pairs(q), pairs(k)
        return [(q1 * self.a[:, None, None], k1), (q2 * self.b[:, None, None], k2)]

    def init_weights(self, draw: Draw) -> None:
        """Fill a, b and the norm's weight with 1; q, k, v, o as version 1 does, head for head."""
        super().init_weights(draw)
        for ones in (self.a, self.b, self.norm_weight):
            if ones is not None:
                nn.init.ones_(ones)

    def _map(self, rows: Sequence[Tensor], k: Tensor, view: View) -> Tensor:
        first, second = (
            self.logits(q * factor[:, None, None], key, view)
            for q, factor, key in zip(rows, (self.a, self.b), pairs(k), strict=True)
        )
        return view.softmax(first - F.logsigmoid(second))
