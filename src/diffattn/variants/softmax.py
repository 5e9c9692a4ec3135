"""Ordinary attention: the baseline, also in the two forms of the paper's ablation rows."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffattn.ops import attention_maps
from diffattn.ops.normed import normed_attention
from diffattn.ops.pointwise import rms_norm
from diffattn.variants.base import Branch, Cost, Draw, Site, Where, register
from diffattn.variants.parts import (
    HeadsConfig,
    ProjectedMixer,
    check_eps,
    layer_cost,
    projection_weights,
    training_flops,
)


@register("softmax")
@dataclass(frozen=True, kw_only=True)
class Softmax(HeadsConfig):
    """Ordinary softmax attention; the baseline of differential attention with h heads has 2 h."""

    norm: bool = False
    """RMSNorm over each head's output, one weight vector shared by all heads."""
    norm_eps: float = 1e-5
    """Added to the mean square in every norm of the layer."""
    temperature: bool = False
    """Learn a factor on the logits of each head, 1 at the start."""
    qkv_biases: bool = False
    """Add learned biases, 0 at the start, to queries, keys and values (Qwen2, arXiv 2407.10671)."""
    query_key_norm: bool = False
    """RMSNorm over each head's queries and keys, ahead of rotary, a weight vector each (Qwen3, arXiv 2505.09388)."""

    def validate(self, site: Site) -> None:
        """Raise ValueError for heads that do not divide and a norm that would divide by 0."""
        super().validate(site)
        check_eps(self.norm_eps)

    def cost(self, site: Site) -> Cost:
        """Give parameters, FLOPs and cache of the layer at this site."""
        self.validate(site)
        matrices = projection_weights(self, site, self.heads, self.groups) + self.more_weights(site)
        cached = 2 * self.groups * self.key_dim(site)
        flops = training_flops(self, site, maps=1, sink=self.has_sink(site))
        return layer_cost(matrices, self.vectors(site), flops, cached)

    def has_sink(self, site: Site) -> bool:
        """Whether the layer at this site has a logit for attending to nothing."""
        return False

    def more_weights(self, site: Site) -> int:
        """Count the entries of matrices beside q, k, v and o."""
        return 0

    def vectors(self, site: Site) -> int:
        """Count the parameters beside the matrices."""
        key_dim = self.key_dim(site)
        biases = (self.heads + 2 * self.groups) * key_dim * self.qkv_biases
        return biases + (self.norm + 2 * self.query_key_norm) * key_dim + self.heads * self.temperature

    def build(self, site: Site) -> "SoftmaxMixer":
        """Validate and make the layer."""
        self.validate(site)
        return SoftmaxMixer(self, site)


class SoftmaxMixer(ProjectedMixer):
    """out_h = [RMSNorm](softmax([t_h] q_h k_g^T / sqrt(D)) v_g), g = h // (H / G); q and k may be normed too."""

    temperature: nn.Parameter | None
    q_norm: nn.Parameter | None
    k_norm: nn.Parameter | None
    scale: float | None = None
    """What logits are multiplied by; None: 1 / sqrt(D)."""

    def __init__(self, config: Softmax, site: Site) -> None:
        super().__init__(config, site, config.heads, config.groups, biases="qkv" if config.qkv_biases else "")
        self.eps = config.norm_eps
        if config.norm:
            self.add_norm(config.norm_eps)
        self.temperature = _vector(config.heads, config.temperature)
        self.q_norm, self.k_norm = (_vector(self.head_dim, config.query_key_norm) for _ in "qk")

    def before_positions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Give queries and keys, normed where the config says so."""
        if self.q_norm is None or self.k_norm is None:
            return q, k
        # Under autocast the projections are narrower than the weights.
        of_queries, of_keys = self.q_norm.to(q.dtype), self.k_norm.to(k.dtype)
        return rms_norm(q, of_queries, self.eps), rms_norm(k, of_keys, self.eps)

    def sink_logits(self, q: Tensor) -> Tensor | None:
        """Give a logit for each head that takes weight and adds nothing, [H]; None: there is none."""
        return None

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W]; see `Mixer.forward`."""
        return self.write(self.attend(x, where, state))

    def attend(self, x: Tensor, where: Where, state: dict[str, Tensor] | None) -> Tensor:
        """Give the output heads [B, H, T, E]."""
        q, k, v = self.read(x, where, state)
        return normed_attention(
            *(self._tempered(q), k, v, self.norm_weight, self.norm_eps, 1.0),
            **where.restrictions(),
            scale=self.scale,
            sink=self.sink_logits(q),
            impl=self.impl,
        )

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give the one map, A."""
        q, k, _ = self.read(x, where, None)
        restrictions = where.restrictions()
        map = attention_maps(self._tempered(q), k, **restrictions, scale=self.scale, sink=self.sink_logits(q))
        return [Branch("A", map.new_ones(()), map)]

    def logit_factors(self, x: Tensor, where: Where) -> list[tuple[Tensor, Tensor]]:
        """Give tempered and scaled queries, and keys."""
        q, k, _ = self.read(x, where, None)
        return [(self._tempered(q) * (self.head_dim**-0.5 if self.scale is None else self.scale), k)]

    def init_weights(self, draw: Draw) -> None:
        """Fill the projections as `ProjectedMixer.init_weights` does; norms' weights and temperatures with 1."""
        super().init_weights(draw)
        for ones in (self.temperature, self.q_norm, self.k_norm):
            if ones is not None:
                nn.init.ones_(ones)

    def _tempered(self, q: Tensor) -> Tensor:
        return q if self.temperature is None else (q * self.temperature[:, None, None]).to(q.dtype)


def _vector(width: int, wanted: bool) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(width)) if wanted else None
