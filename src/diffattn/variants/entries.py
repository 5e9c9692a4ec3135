"""Layers whose map is no softmax, or no plain difference of two: it is computed entry by entry (`ops/rows.py`).

Only impl="reference" serves them. Letters as in `diffattn.ops`.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor

from diffattn.ops.masks import Restrictions
from diffattn.ops.reference import grouped_product
from diffattn.ops.rows import View, by_rows, tile_height
from diffattn.variants.base import Branch, Cost, Site, Where
from diffattn.variants.diff_v1 import DiffV1, DiffV1Mixer
from diffattn.variants.parts import HeadsConfig, ProjectedMixer, layer_cost, projection_weights, wide


class OneMapConfig(HeadsConfig):
    """An attention with the baseline's projections and a map of another form."""

    implementations: ClassVar[tuple[str, ...] | None] = ("reference",)

    def vectors(self, site: Site) -> int:
        """Count the parameters beside the projections."""
        return 0

    def multiplications(self) -> int:
        """Count those that an entry of a map takes part in between its logit and its value."""
        return 0

    def cost(self, site: Site) -> Cost:
        """Give parameters, FLOPs and cache of the layer at this site."""
        self.validate(site)
        matrices = projection_weights(self, site, self.heads, self.groups)
        cached = 2 * self.groups * self.key_dim(site)
        flops = entry_flops(self, site, maps=1, between=self.multiplications())
        return layer_cost(matrices, self.vectors(site), flops, cached)


class EntryMixer(ProjectedMixer):
    """A layer that computes its maps entry by entry, from logits that are all made here."""

    def logits(self, q: Tensor, k: Tensor, view: View) -> Tensor:
        """Give the logits [B, H, T, S] of one map before bias and mask, for a tile of queries that sees `view`."""
        return grouped_product(q * self.head_dim**-0.5, k.mT)

    def by_tiles(
        self,
        entries: Callable[[Sequence[Tensor], Tensor, View], Tensor],
        rows: Sequence[Tensor],
        k: Tensor,
        v: Tensor | None,
        where: Where,
    ) -> Tensor:
        """Give what a map [B, H, T, S] reads from v, [B, H, T, E], or where v is None the map: tile by tile it is
        entries(tiles of `rows`, k, view)."""

        def attend(rows: Sequence[Tensor], shared: Sequence[Tensor], view: View) -> Tensor:
            k, *values = shared
            map = entries(rows, k, view)
            return grouped_product(map, values[0]) if values else map

        shared = [wide(x) for x in (k, v) if x is not None]
        given = Restrictions(**where.restrictions())
        return by_rows(attend, rows, shared, given, list(self.parameters(recurse=False)))


class OneMapMixer(EntryMixer):
    """out_h = f(q_h k_g^T / sqrt(D)) v_g, g = h // (H / G)."""

    def __init__(self, config: HeadsConfig, site: Site) -> None:
        super().__init__(config, site, queries=config.heads, keys=config.groups)

    def weights(self, logits: Tensor, view: View) -> Tensor:
        """Give the map [B, H, T, S] of logits before bias and mask; what a query does not see has weight 0."""
        raise NotImplementedError

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W]; see `Mixer.forward`."""
        q, k, v = self.read(x, where, state)
        return self.write(self.by_tiles(self._map, [q], k, v, where).to(v.dtype))

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give the one map, A."""
        q, k, _ = self.read(x, where, None)
        map = self.by_tiles(self._map, [q], k, None, where)
        return [Branch("A", map.new_ones(()), map)]

    def _map(self, rows: Sequence[Tensor], k: Tensor, view: View) -> Tensor:
        return self.weights(self.logits(rows[0], k, view), view)


class BracketConfig(DiffV1):
    """V1 with something else in the place of A1 - λ A2."""

    implementations: ClassVar[tuple[str, ...] | None] = ("reference",)

    def attention_flops(self, site: Site) -> tuple[int, int]:
        """Count the FLOPs per token of the products with keys and values: (algebra, executed)."""
        return entry_flops(self, site, maps=2)


class BracketMixer(EntryMixer, DiffV1Mixer):
    """head_h = (1 - lambda_init) RMSNorm(f(A1, A2, λ) v_g), with V1's pairs, λ and norm."""

    def bracket(self, first: Tensor, second: Tensor, lam: Tensor) -> Tensor:
        """Give the map [B, H, T, S] from A1 and A2, whose hidden entries are 0, and λ, which broadcasts to them."""
        raise NotImplementedError

    def attend(
        self, q: tuple[Tensor, Tensor], k: tuple[Tensor, Tensor], v: Tensor, lam: Tensor, where: Where
    ) -> Tensor:
        """Give the output heads [B, H, T, E], norm and gain included."""

        def read(rows: Sequence[Tensor], shared: Sequence[Tensor], view: View) -> Tensor:
            *keys, v, lam = shared
            first, second = self._maps(rows, keys, view)
            return grouped_product(self.bracket(first, second, lam), v)

        shared = [wide(k[0]), wide(k[1]), wide(v), lam]
        heads = by_rows(read, q, shared, Restrictions(**where.restrictions()))
        return self.norm_heads(heads, 1.0 - self.lambda_init).to(v.dtype)

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give A1, -λ A2, and what the bracket adds to their sum; the norm behind them is left out."""
        first, second = super().branches(x, where)
        lam = -second.coefficient
        rest = self.bracket(first.map, second.map, lam) - (first.map - lam * second.map)
        return [first, second, Branch("bracket", first.map.new_ones(()), rest)]

    def _maps(self, rows: Sequence[Tensor], keys: Sequence[Tensor], view: View) -> tuple[Tensor, Tensor]:
        first, second = (view.softmax(self.logits(q, k, view)) for q, k in zip(rows, keys, strict=True))
        return first, second


def entry_flops(config: HeadsConfig, site: Site, maps: int, between: int = 0) -> tuple[int, int]:
    """Count the FLOPs per token of the products with keys and values: (algebra, executed), forward and backward.

    `between` them each entry of a head's map takes part in so many multiplications more. Executed is the same as
    algebra for sequences of one tile; beyond (at batch 1), each tile is computed again in the backward pass.
    """
    key_dim = config.key_dim(site)
    forward = 2 * config.heads * site.context * ((maps + config.values_per_key) * key_dim + between)
    again = tile_height(config.heads, site.context, site.context) < site.context
    return 3 * forward, (4 if again else 3) * forward
