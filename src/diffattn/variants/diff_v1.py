"""The Differential Transformer's attention, version 1, with the options that its literature needs."""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from diffattn.ops import diff_attention_maps
from diffattn.ops.normed import normed_diff_attention
from diffattn.variants.base import Branch, Cost, Draw, Site, Where, register
from diffattn.variants.parts import (
    HeadsConfig,
    ProjectedMixer,
    check_choice,
    check_eps,
    fill,
    is_number,
    layer_cost,
    pairs,
    projection_weights,
    training_flops,
    wide,
)

Norm = Literal["weight", "plain", "none"]
Lam = Literal["exp", "scalar", "per_head", "sigmoid", "fixed"]


@register("diff_v1")
@dataclass(frozen=True, kw_only=True)
class DiffV1(HeadsConfig):
    """Differential attention, arXiv 2410.05258, eq. 1-3."""

    heads: int = 4
    """Output heads; a Transformer of the same cost has twice as many."""
    lambda_init: float | None = None
    """λ at the start, also in the gain 1 - lambda_init; None: 0.8 - 0.6 exp(-0.3 layer)."""
    lam: Lam = "exp"
    """How λ is learned: exp(a.b) - exp(c.d) + lambda_init as published, scalar, per head, sigmoid(scalar) or fixed."""
    norm: Norm = "weight"
    """RMSNorm of each head: with one weight vector shared by all heads, without weight, or none (the gain remains)."""
    norm_eps: float = 1e-5
    """Added to the mean square in that norm."""
    biases: bool = False
    """Add a bias to all four projections."""
    equal_maps: bool = False
    """Start the second map as a copy of the first."""

    values_per_key: ClassVar[int] = 2

    def start_of_lambda(self, site: Site) -> float:
        """Give lambda_init of the layer at this site."""
        if self.lambda_init is not None:
            return self.lambda_init
        # 0.8 - 0.6 exp(-0.3 layer), written so that layer 0 gives exactly 0.2.
        return 0.2 - 0.6 * math.expm1(-0.3 * site.layer)

    def validate(self, site: Site) -> None:
        """Raise ValueError for heads that do not divide and for unknown options."""
        super().validate(site)
        check_choice("lam", self.lam, Lam)
        check_choice("norm", self.norm, Norm)
        check_eps(self.norm_eps)
        start = self.start_of_lambda(site)
        if not is_number(start):
            raise ValueError(f"lambda_init: got {start!r}, needs a finite number")
        if self.lam == "sigmoid" and not 0 < start < 1:
            raise ValueError(f"lambda_init: got {start}, needs to lie strictly between 0 and 1 for a sigmoid")

    def cost(self, site: Site) -> Cost:
        """Give parameters, FLOPs and cache of the layer at this site."""
        self.validate(site)
        queries, keys = self.map_heads()
        matrices = projection_weights(self, site, queries, keys)
        cached = (keys + 2 * self.groups) * self.key_dim(site)
        return layer_cost(matrices, self.vectors(site), self.attention_flops(site), cached)

    def map_heads(self) -> tuple[int, int]:
        """Count the query heads and the key heads of both maps together."""
        return 2 * self.heads, 2 * self.groups

    def vectors(self, site: Site) -> int:
        """Count the parameters beside the projections' matrices: those of λ, the norm's weight, biases."""
        key_dim = self.key_dim(site)
        lambdas = {"exp": 4 * key_dim, "scalar": 1, "per_head": self.heads, "sigmoid": 1, "fixed": 0}[self.lam]
        biases = (sum(self.map_heads()) + 2 * self.groups) * key_dim + site.width if self.biases else 0
        return lambdas + biases + 2 * key_dim * (self.norm == "weight")

    def attention_flops(self, site: Site) -> tuple[int, int]:
        """Count the FLOPs per token of the products with keys and values: (algebra, executed)."""
        return training_flops(self, site, maps=2)

    def build(self, site: Site) -> "DiffV1Mixer":
        """Validate and make the layer."""
        self.validate(site)
        return DiffV1Mixer(self, site)


class DiffV1Mixer(ProjectedMixer):
    """head_h = (1 - lambda_init) RMSNorm((A1 - λ A2) v_g); queries 2h, 2h + 1 and keys 2g, 2g + 1 are a pair."""

    def __init__(self, config: DiffV1, site: Site) -> None:
        queries, keys = config.map_heads()
        super().__init__(config, site, queries, keys, biases="qkvo" if config.biases else "")
        self.lam_kind = config.lam
        self.equal_maps = config.equal_maps
        self.lambda_init = config.start_of_lambda(site)
        if config.lam == "exp":
            for name in LAMBDA_VECTORS:
                self.register_parameter(name, nn.Parameter(torch.empty(self.head_dim)))
        elif config.lam != "fixed":
            self.lambda_raw = nn.Parameter(torch.empty(config.heads if config.lam == "per_head" else 1))
        if config.norm != "none":
            self.add_norm(config.norm_eps, weight=config.norm == "weight")

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W]; see `Mixer.forward`."""
        q, k, v = self.read(x, where, state)
        return self.write(self.attend(*self.both_maps(q, k), v, self._broadcast(self.lam(x)), where))

    def both_maps(self, q: Tensor, k: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Give the queries of both maps, each [B, H, T, D], and their keys, each [B, G, S, D]."""
        return pairs(q), pairs(k)

    def attend(
        self, q: tuple[Tensor, Tensor], k: tuple[Tensor, Tensor], v: Tensor, lam: Tensor, where: Where
    ) -> Tensor:
        """Give the output heads [B, H, T, E], norm and gain included; what other two-map layers write anew."""
        (q1, q2), (k1, k2) = q, k
        return normed_diff_attention(
            *(q1, k1, q2, k2, v),
            lam,
            self.norm_weight,
            self.norm_eps,
            1.0 - self.lambda_init,
            **where.restrictions(),
            impl=self.impl,
        )

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give A1 with coefficient 1 and A2 with coefficient -λ; the norm behind them is left out."""
        q, k, _ = self.read(x, where, None)
        (q1, q2), (k1, k2) = self.both_maps(q, k)
        first, second = diff_attention_maps(q1, k1, q2, k2, **where.restrictions())
        lam = self._broadcast(self.lam(x))
        return [Branch("A1", first.new_ones(()), first), Branch("A2", -lam, second)]

    def logit_factors(self, x: Tensor, where: Where) -> list[tuple[Tensor, Tensor]]:
        """Give queries / sqrt(D) and keys of both maps."""
        ((q, k),) = super().logit_factors(x, where)
        return list(zip(*self.both_maps(q, k), strict=True))

    def lam(self, x: Tensor) -> Tensor:
        """Give λ as a scalar, or [H] where each head has its own; float32 whatever the stored dtype."""
        if self.lam_kind == "exp":
            q1, k1, q2, k2 = (wide(getattr(self, name)) for name in LAMBDA_VECTORS)
            return torch.dot(q1, k1).exp() - torch.dot(q2, k2).exp() + self.lambda_init
        if self.lam_kind == "fixed":
            return torch.full((), self.lambda_init, device=x.device, dtype=wide(x.new_empty(0)).dtype)
        raw = wide(self.lambda_raw)
        if self.lam_kind == "sigmoid":
            raw = raw.sigmoid()
        return raw if self.lam_kind == "per_head" else raw.squeeze(0)

    def init_weights(self, draw: Draw) -> None:
        """Fill every parameter.

        q, k, v, o           as `ProjectedMixer.init_weights`; in order of heads, so equal to those of a softmax layer
                             with 2 H heads; `equal_maps` copies first queries and keys onto the second
        lambda_q1 .. k2      N(0, 0.1)
        λ as a scalar        lambda_init (its logit for the sigmoid)
        norm                 1
        """
        super().init_weights(draw)
        if self.equal_maps:
            for part in (self.q, self.k):
                pairs = part.weight.detach().unflatten(0, (-1, 2, self.head_dim))
                pairs[:, 1] = pairs[:, 0]
        if self.lam_kind == "exp":
            for name in LAMBDA_VECTORS:
                fill(getattr(self, name), draw.normal(name, (self.head_dim,), 0.1))
        elif self.lam_kind != "fixed":
            start = self.lambda_init
            nn.init.constant_(self.lambda_raw, math.log(start / (1 - start)) if self.lam_kind == "sigmoid" else start)

    def _broadcast(self, lam: Tensor) -> Tensor:
        return lam[:, None, None] if lam.ndim else lam


def refuse_options(config: DiffV1, *names: str, why: str) -> None:
    """Raise ValueError where an option of V1 that means nothing to this variant has another value than its default."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in names and value != field.default:
            raise ValueError(f"{field.name}: got {value!r} for {config.name}, {why}; leave it out")


def drawn_pairs(draw: Draw, role: str, part: nn.Linear, head_dim: int) -> tuple[Tensor, Tensor]:
    """Give V1's starting weights of the first and of the second maps, each [N * D, W] like the weight of `part`."""
    rows, width = part.weight.shape
    pairs = draw.normal(role, (2 * rows, width), width**-0.5).unflatten(0, (-1, 2, head_dim))
    return pairs[:, 0].flatten(0, 1), pairs[:, 1].flatten(0, 1)


LAMBDA_VECTORS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
