"""The difference of one map at two temperatures."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffattn.ops import diff_attention_maps
from diffattn.ops.normed import normed_diff_attention
from diffattn.variants.base import Branch, Cost, Draw, Site, Where, register
from diffattn.variants.diff_v1 import Norm
from diffattn.variants.parts import (
    HeadsConfig,
    ProjectedMixer,
    check_choice,
    check_eps,
    is_number,
    layer_cost,
    projection_weights,
    training_flops,
)


@register("diff_temperature")
@dataclass(frozen=True, kw_only=True)
class DiffTemperature(HeadsConfig):
    """softmax(S) - softmax(tau S), tau learned per head: one query and one key as wide as V1's two together.

    head_h = RMSNorm((softmax(S_h) - softmax(tau_h S_h)) v_g), S = q k^T / sqrt(width of q), no λ and a gain of 1. Rows
    of the map sum to 0, so that the first token reads 0, and with tau = 1 all do. tau is a factor on the logits.
    """

    heads: int = 4
    """Output heads; as many as V1 has, each as wide as two heads of a Transformer of the same cost."""
    start: float = 0.5
    """tau of every head at the start."""
    norm: Norm = "weight"
    """RMSNorm of each head: with one weight vector shared by all heads, without weight, or none."""
    norm_eps: float = 1e-5
    """Added to the mean square in that norm."""

    def validate(self, site: Site) -> None:
        """Raise ValueError for heads that do not divide, a start that is no number and an unknown norm."""
        super().validate(site)
        if not is_number(self.start):
            raise ValueError(f"start: got {self.start!r}, needs a finite number")
        check_choice("norm", self.norm, Norm)
        check_eps(self.norm_eps)

    def cost(self, site: Site) -> Cost:
        """Give parameters, FLOPs and cache of the layer at this site."""
        self.validate(site)
        matrices = projection_weights(self, site, self.heads, self.groups)
        vectors = self.heads + self.key_dim(site) * (self.norm == "weight")
        algebra, _ = training_flops(self, site, maps=1)
        _, executed = training_flops(self, site, maps=2)
        return layer_cost(matrices, vectors, (algebra, executed), 2 * self.groups * self.key_dim(site))

    def build(self, site: Site) -> "DiffTemperatureMixer":
        """Validate and make the layer."""
        self.validate(site)
        return DiffTemperatureMixer(self, site)


class DiffTemperatureMixer(ProjectedMixer):
    """head_h = RMSNorm((softmax(S_h) - softmax(tau_h S_h)) v_g), g = h // (H / G)."""

    def __init__(self, config: DiffTemperature, site: Site) -> None:
        super().__init__(config, site, queries=config.heads, keys=config.groups)
        self.start = config.start
        self.tau = nn.Parameter(torch.empty(config.heads))
        if config.norm != "none":
            self.add_norm(config.norm_eps, weight=config.norm == "weight")

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W]; see `Mixer.forward`."""
        q, k, v = self.read(x, where, state)
        heads = normed_diff_attention(
            *(q, k, self._tempered(q), k, v),
            1.0,
            self.norm_weight,
            self.norm_eps,
            1.0,
            **where.restrictions(),
            impl=self.impl,
        )
        return self.write(heads)

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give softmax(S) with coefficient 1 and softmax(tau S) with coefficient -1; the norm is left out."""
        q, k, _ = self.read(x, where, None)
        first, second = diff_attention_maps(q, k, self._tempered(q), k, **where.restrictions())
        one = first.new_ones(())
        return [Branch("A1", one, first), Branch("A2", -one, second)]

    def logit_factors(self, x: Tensor, where: Where) -> list[tuple[Tensor, Tensor]]:
        """Give queries / sqrt(D) and keys of S and of tau S."""
        ((q, k),) = super().logit_factors(x, where)
        return [(q, k), (self._tempered(q), k)]

    def init_weights(self, draw: Draw) -> None:
        """Fill the projections as `ProjectedMixer.init_weights` does: their channels start as V1's with as many heads;
        tau with `start`, the norm's weight with 1."""
        super().init_weights(draw)
        nn.init.constant_(self.tau, self.start)

    def _tempered(self, q: Tensor) -> Tensor:
        return (q * self.tau[:, None, None]).to(q.dtype)
