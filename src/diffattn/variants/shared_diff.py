"""Two maps from one query and one key, each with a low-rank part of its own."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffattn.variants.base import Cost, Draw, Site, check_whole, register
from diffattn.variants.diff_v1 import DiffV1, DiffV1Mixer, drawn_pairs, refuse_options
from diffattn.variants.parts import fill, layer_cost, projection_weights


@register("shared_diff")
@dataclass(frozen=True, kw_only=True)
class SharedDiff(DiffV1):
    """A1 - λ A2 with W_q,i = W_q + A_i B_i, keys alike, of rank r: arXiv 2501.17900.

    head_h = (1 - lambda_init) RMSNorm((A1 - λ A2) v_g), V1's but for the projections: x W_q + (x A_i) B_i with A_i
    [W, r] and B_i [r, H D] for map i; [r, G D] for keys. With B_1 = B_2 the maps are equal.
    """

    rank: int = 4
    """Rank r of the part in which the maps differ."""

    def validate(self, site: Site) -> None:
        """Raise ValueError for heads that do not divide, a rank below 1, and options without meaning."""
        refuse_options(self, "equal_maps", "biases", why="whose maps share their projections")
        check_whole("rank", self.rank, 1)
        super().validate(site)

    def cost(self, site: Site) -> Cost:
        """Give parameters, FLOPs and cache of the layer at this site."""
        self.validate(site)
        shared = projection_weights(self, site, self.heads, self.groups)
        apart = 2 * self.rank * (2 * site.width + (self.heads + self.groups) * self.key_dim(site))
        cached = 4 * self.groups * self.key_dim(site)
        return layer_cost(shared + apart, self.vectors(site), self.attention_flops(site), cached)

    def build(self, site: Site) -> "SharedDiffMixer":
        """Validate and make the layer."""
        self.validate(site)
        return SharedDiffMixer(self, site)


class SharedDiffMixer(DiffV1Mixer):
    """V1 whose queries are W_q x + B_i A_i x for map i, keys alike; first maps lie before second ones."""

    def __init__(self, config: SharedDiff, site: Site) -> None:
        super().__init__(config, site)
        width, rank = site.width, config.rank
        queries, keys = config.heads * self.head_dim, config.groups * self.head_dim
        self.q, self.k = nn.Linear(width, queries, bias=False), nn.Linear(width, keys, bias=False)
        self.q1_down, self.q1_up = nn.Linear(width, rank, bias=False), nn.Linear(rank, queries, bias=False)
        self.q2_down, self.q2_up = nn.Linear(width, rank, bias=False), nn.Linear(rank, queries, bias=False)
        self.k1_down, self.k1_up = nn.Linear(width, rank, bias=False), nn.Linear(rank, keys, bias=False)
        self.k2_down, self.k2_up = nn.Linear(width, rank, bias=False), nn.Linear(rank, keys, bias=False)

    def project_queries(self, x: Tensor) -> Tensor:
        """Give the queries of the first maps and then those of the second, [B, T, 2H * D]."""
        shared = self.q(x)
        return torch.cat((shared + self.q1_up(self.q1_down(x)), shared + self.q2_up(self.q2_down(x))), -1)

    def project_keys(self, source: Tensor) -> Tensor:
        """Give the keys of the first maps and then those of the second, [B, S, 2G * D]."""
        shared = self.k(source)
        return torch.cat((shared + self.k1_up(self.k1_down(source)), shared + self.k2_up(self.k2_down(source))), -1)

    def both_maps(self, q: Tensor, k: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Give the queries of both maps, each [B, H, T, D], and their keys, each [B, G, S, D]."""
        q1, q2 = q.chunk(2, 1)
        k1, k2 = k.chunk(2, 1)
        return (q1, q2), (k1, k2)

    def init_weights(self, draw: Draw) -> None:
        """Fill every parameter as V1 does, but

        q, k                 those of V1's first maps
        q1_down .. k2_down   N(0, 0.02)
        q1_up, k1_up         0: the first map starts as the shared one
        q2_up, k2_up         N(0, 0.02)
        """
        super().init_weights(draw)
        for role, part in (("q", self.q), ("k", self.k)):
            fill(part.weight, drawn_pairs(draw, role, part, self.head_dim)[0])
            for apart, std in (
                (f"{role}1_down", 0.02),
                (f"{role}1_up", 0.0),
                (f"{role}2_down", 0.02),
                (f"{role}2_up", 0.02),
            ):
                weight = self.get_parameter(f"{apart}.weight")
                fill(weight, draw.normal(apart, weight.shape, std))
