"""One softmax whose logits a second set of logits gates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffattn.ops.rows import View
from diffattn.variants.base import Branch, Cost, Draw, Site, Where, register
from diffattn.variants.entries import EntryMixer, entry_flops
from diffattn.variants.parts import (
    HeadsConfig,
    check_eps,
    layer_cost,
    pairs,
    projection_weights,
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

    def __init__(self, config: GatedLogsigmoid, site: Site) -> None:
        super().__init__(config, site, queries=2 * config.heads, keys=2 * config.groups)
        self.a, self.b = nn.Parameter(torch.empty(config.heads)), nn.Parameter(torch.empty(config.heads))
        if config.norm:
            self.add_norm(config.norm_eps)

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W]; see `Mixer.forward`."""
        q, k, v = self.read(x, where, state)
        heads = self.by_tiles(self._map, pairs(q), k, v, where)
        return self.write(self.norm_heads(heads).to(v.dtype))

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give the one map, A; the norm behind it is left out."""
        q, k, _ = self.read(x, where, None)
        map = self.by_tiles(self._map, pairs(q), k, None, where)
        return [Branch("A", map.new_ones(()), map)]

    def logit_factors(self, x: Tensor, where: Where) -> list[tuple[Tensor, Tensor]]:
        """Give queries and keys of a S1 and of b S2."""
        ((q, k),) = super().logit_factors(x, where)
        (q1, q2), (k1, k2) = pairs(q), pairs(k)
        return [(q1 * self.a[:, None, None], k1), (q2 * self.b[:, None, None], k2)]

    def init_weights(self, draw: Draw) -> None:
        """Fill a, b and the norm's weight with 1; q, k, v, o as version 1 does, head for head."""
        super().init_weights(draw)
        for ones in (self.a, self.b):
            nn.init.ones_(ones)

    def _map(self, rows: Sequence[Tensor], k: Tensor, view: View) -> Tensor:
        first, second = (
            self.logits(q * factor[:, None, None], key, view)
            for q, factor, key in zip(rows, (self.a, self.b), pairs(k), strict=True)
        )
        return view.softmax(first - F.logsigmoid(second))
