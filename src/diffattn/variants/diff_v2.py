"""The Differential Transformer's attention, version 2: shared keys, λ from the token, no norm behind the heads."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffattn.ops import diff_attention_maps
from diffattn.ops.normed import normed_diff_attention
from diffattn.variants.base import Branch, Cost, Draw, Site, Where, register
from diffattn.variants.parts import (
    HeadsConfig,
    ProjectedMixer,
    check_eps,
    fill,
    layer_cost,
    pairs,
    projection_weights,
    training_flops,
    wide,
)


@register("diff_v2")
@dataclass(frozen=True, kw_only=True)
class DiffV2(HeadsConfig):
    """Differential attention, version 2 (January 2026): two queries per head, keys and values as in the baseline."""

    norm: bool = False
    """RMSNorm over each head's output, as in version 1; as published there is none."""
    norm_eps: float = 1e-5
    """Added to the mean square in that norm."""

    def validate(self, site: Site) -> None:
        """Raise ValueError for heads that do not divide and a norm that would divide by 0."""
        super().validate(site)
        check_eps(self.norm_eps)

    def cost(self, site: Site) -> Cost:
        """Give parameters, FLOPs and cache of the layer at this site."""
        self.validate(site)
        matrices = projection_weights(self, site, 2 * self.heads, self.groups) + site.width * self.heads
        key_dim = self.key_dim(site)
        flops = training_flops(self, site, maps=2)
        return layer_cost(matrices, key_dim * self.norm, flops, 2 * self.groups * key_dim)

    def build(self, site: Site) -> "DiffV2Mixer":
        """Validate and make the layer."""
        self.validate(site)
        return DiffV2Mixer(self, site)


class DiffV2Mixer(ProjectedMixer):
    """out_h = [RMSNorm](A(q_2h, k_g) v_g - sigmoid(lambda_proj(x))_h A(q_2h+1, k_g) v_g), g = h // (H / G)."""

    def __init__(self, config: DiffV2, site: Site) -> None:
        super().__init__(config, site, queries=2 * config.heads, keys=config.groups)
        if config.norm:
            self.add_norm(config.norm_eps)
        self.lambda_proj = nn.Linear(site.width, config.heads, bias=False)

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W]; see `Mixer.forward`."""
        q, k, v = self.read(x, where, state)
        q1, q2 = pairs(q)
        lam = self.lam(x).transpose(1, 2)[..., None]
        norm = (self.norm_weight, self.norm_eps, 1.0)
        heads = normed_diff_attention(*(q1, k, q2, k, v), lam, *norm, **where.restrictions(), impl=self.impl)
        return self.write(heads)

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give A1 with coefficient 1 and A2 with coefficient -λ per head and token."""
        q, k, _ = self.read(x, where, None)
        q1, q2 = pairs(q)
        first, second = diff_attention_maps(q1, k, q2, k, **where.restrictions())
        lam = self.lam(x).transpose(1, 2)[..., None]
        return [Branch("A1", first.new_ones(()), first), Branch("A2", -lam, second)]

    def logit_factors(self, x: Tensor, where: Where) -> list[tuple[Tensor, Tensor]]:
        """Give the queries / sqrt(D) of both maps, each with the shared keys."""
        ((q, k),) = super().logit_factors(x, where)
        q1, q2 = pairs(q)
        return [(q1, k), (q2, k)]

    def lam(self, x: Tensor) -> Tensor:
        """Give λ of each token and head, [B, T, H], float32 whatever the stored dtype."""
        return wide(self.lambda_proj(x)).sigmoid()

    def init_weights(self, draw: Draw) -> None:
        """Fill every parameter.

        k, v, o              as `ProjectedMixer.init_weights`
        q                    first queries equal to those of a softmax layer with H heads, second ones drawn apart
        lambda_proj          N(0, 1/W): for tokens of unit variance λ starts as sigmoid(N(0, 1)), 0.5 in the middle
        norm                 1
        """
        super().init_weights(draw)
        shape = self.lambda_proj.weight.shape
        fill(self.lambda_proj.weight, draw.normal("lambda_proj", shape, self.site.width**-0.5))

    def starting_queries(self, draw: Draw) -> Tensor:
        """Give the first values of q's weight: pairs of rows from the roles "q" and "q2"."""
        shape, std = (self.heads * self.head_dim, self.site.width), self.site.width**-0.5
        pair = [draw.normal(role, shape, std).unflatten(0, (self.heads, self.head_dim)) for role in ("q", "q2")]
        return torch.stack(pair, dim=1).flatten(0, 2)
