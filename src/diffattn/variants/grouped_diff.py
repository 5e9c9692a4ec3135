"""Fewer noise heads than signal heads."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffattn.ops import diff_attention_maps
from diffattn.variants.base import Branch, Draw, Site, Where, check_whole, register
from diffattn.variants.diff_v1 import DiffV1, DiffV1Mixer, drawn_pairs, refuse_options
from diffattn.variants.parts import fill, training_flops


@register("grouped_diff")
@dataclass(frozen=True, kw_only=True)
class GroupedDiff(DiffV1):
    """A1_h - λ A2_(h // r): r signal heads share a noise head, arXiv 2510.06949.

    head_h = (1 - lambda_init) RMSNorm((A1_h - λ A2_(h // r)) v_g), V1's otherwise; H/r noise queries. Where keys are
    shared by n = H/G > 1 heads, r divides n and each group has a second key; else there are H/r second keys.
    """

    share: int = 2
    """Signal heads that share a noise head, r."""

    def validate(self, site: Site) -> None:
        """Raise ValueError for heads that do not divide, and for options without meaning."""
        refuse_options(self, "equal_maps", "biases", why="whose noise heads have projections of their own")
        super().validate(site)
        check_whole("share", self.share, 1)
        per_group = self.heads // self.groups
        if per_group > 1 and per_group % self.share:
            raise ValueError(
                f"share: got {self.share}, needs a divisor of {per_group}, the heads that share a key, because a noise "
                "head has one second key; change share, or kv_heads"
            )
        if self.heads % self.share:
            raise ValueError(f"share: got {self.share}, needs a divisor of {self.heads}, the output heads")

    @property
    def noise_heads(self) -> int:
        """Number of noise heads, H / r."""
        return self.heads // self.share

    @property
    def noise_keys(self) -> int:
        """Number of second keys: one for each group, or for each noise head where every signal head has a key."""
        return self.noise_heads if self.groups == self.heads else self.groups

    def map_heads(self) -> tuple[int, int]:
        """Count the query heads and the key heads of both maps together."""
        return self.heads + self.noise_heads, self.groups + self.noise_keys

    def attention_flops(self, site: Site) -> tuple[int, int]:
        """Count the FLOPs per token of the products with keys and values: (algebra, executed).

        Algebra computes a noise head's map once; the operators compute it for each of its signal heads.
        """
        algebra, executed = training_flops(self, site, maps=2)
        return algebra - 6 * (self.heads - self.noise_heads) * site.context * self.key_dim(site), executed

    def build(self, site: Site) -> "GroupedDiffMixer":
        """Validate and make the layer."""
        self.validate(site)
        return GroupedDiffMixer(self, site)


class GroupedDiffMixer(DiffV1Mixer):
    """head_h = (1 - lambda_init) RMSNorm((A(q_h, k_g) - λ A(q2_(h // r), k2)) v_g)."""

    def __init__(self, config: GroupedDiff, site: Site) -> None:
        super().__init__(config, site)
        self.share = config.share
        self.signal_and_noise = (config.heads, config.noise_heads), (config.groups, config.noise_keys)
        (self.q, self.q2), (self.k, self.k2) = (
            [nn.Linear(site.width, heads * self.head_dim, bias=False) for heads in both]
            for both in self.signal_and_noise
        )

    def project_queries(self, x: Tensor) -> Tensor:
        """Give the signal queries and then the noise queries, [B, T, (H + H/r) D]."""
        return torch.cat((self.q(x), self.q2(x)), -1)

    def project_keys(self, source: Tensor) -> Tensor:
        """Give the first keys and then the second ones, side by side."""
        return torch.cat((self.k(source), self.k2(source)), -1)

    def both_maps(self, q: Tensor, k: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Give signal [B, H, T, D] and noise queries [B, H/r, T, D], and the keys of both."""
        queries, keys = self.signal_and_noise
        q1, q2 = q.split(queries, 1)
        k1, k2 = k.split(keys, 1)
        return (q1, q2), (k1, k2)

    def attend(
        self, q: tuple[Tensor, Tensor], k: tuple[Tensor, Tensor], v: Tensor, lam: Tensor, where: Where
    ) -> Tensor:
        """Give the output heads [B, H, T, E], norm and gain included."""
        (q1, q2), (k1, k2) = q, k
        if k1.shape[1] == k2.shape[1]:
            return super().attend((q1, q2.repeat_interleave(self.share, 1)), k, v, lam, where)
        # Each call takes one signal head of every noise head, so that second keys are never copied.
        found = []
        for first in range(self.share):
            of = slice(first, None, self.share)
            own = lam[of] if lam.ndim else lam
            found.append(super().attend((q1[:, of], q2), (k1[:, of], k2), v[:, of], own, _of_heads(where, of)))
        return torch.stack(found, 2).flatten(1, 2)

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give A1 with coefficient 1 and each noise head's map, once for each of its heads, with -λ; without norm."""
        q, k, _ = self.read(x, where, None)
        (q1, q2), (k1, k2) = self.both_maps(q, k)
        q2 = q2.repeat_interleave(self.share, 1)
        k2 = k2.repeat_interleave(k1.shape[1] // k2.shape[1], 1)
        first, second = diff_attention_maps(q1, k1, q2, k2, **where.restrictions())
        return [Branch("A1", first.new_ones(()), first), Branch("A2", -self._broadcast(self.lam(x)), second)]

    def init_weights(self, draw: Draw) -> None:
        """Fill every parameter as V1 does: q and k as its first maps, q2 and k2 as the second maps of the first head of
        each noise head."""
        super().init_weights(draw)
        for role, part, second in (("q", self.q, self.q2), ("k", self.k, self.k2)):
            signal, noise = drawn_pairs(draw, role, part, self.head_dim)
            fill(part.weight, signal)
            every = part.out_features // second.out_features
            fill(second.weight, noise.unflatten(0, (-1, self.head_dim))[::every].flatten(0, 1))


def _of_heads(where: Where, heads: slice) -> Where:
    """The same for some output heads alone."""
    alibi, mask = where.alibi, where.attn_mask
    if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1:
        mask = mask[..., heads, :, :]
    return dataclasses.replace(where, alibi=None if alibi is None else alibi[heads], attn_mask=mask)
