"""Differential attention with an integral part, which makes the rows of the map sum to 1 again."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from diffattn.ops import attention
from diffattn.variants.base import Branch, Site, Where, register
from diffattn.variants.diff_v1 import DiffV1, DiffV1Mixer
from diffattn.variants.parts import pairs, training_flops, wide


@register("dint")
@dataclass(frozen=True, kw_only=True)
class Dint(DiffV1):
    """(A1 - λ A2) V + λ * running mean of A1 V: DINT (arXiv 2501.17486), without its look into the future."""

    refuses: ClassVar[frozenset[str]] = frozenset({"window", "memory", "attn_mask"})
    """The mean brings in what earlier tokens attended, be it outside this token's window or mask; a memory has no
    order to run along."""

    def attention_flops(self, site: Site) -> tuple[int, int]:
        """Count the FLOPs per token of the products with keys and values: (algebra, executed).

        By algebra they are V1's, since maps can be averaged before the product with V; executed are two attentions.
        """
        return training_flops(self, site, maps=2)[0], 2 * training_flops(self, site, maps=1)[1]

    def build(self, site: Site) -> "DintMixer":
        """Validate and make the layer."""
        self.validate(site)
        return DintMixer(self, site)


class DintMixer(DiffV1Mixer):
    """head_h = (1 - lambda_init) RMSNorm(o1 - λ o2 + λ mean(o1)), o_c = A_c v_g; V1's pairs, λ, norm and start.

    The mean at a token is over its document's tokens up to itself, padding left out. A document is a run of tokens of
    one id; padding inside it does not end it.
    """

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W]; see `Mixer.forward`."""
        q, k, v = self.read(x, where, state)
        o1, o2 = (
            wide(attention(*part, v, **where.restrictions(), impl=self.impl))
            for part in zip(pairs(q), pairs(k), strict=True)
        )
        lam = self._broadcast(self.lam(x))
        heads = o1 - lam * o2 + lam * self._mean(o1, where, k.shape[2], state)
        return self.write(self.norm_heads(heads, 1.0 - self.lambda_init).to(v.dtype))

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give V1's two maps and the running mean of the first with coefficient λ; the norm is left out."""
        first, second = super().branches(x, where)
        mean = self._mean(first.map, where, x.shape[1], None)
        return [first, second, Branch("mean of A1", -second.coefficient, mean)]

    def read(self, x: Tensor, where: Where, state: dict[str, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Give q, k and v as `ProjectedMixer.read` does; ValueError without the causal rule."""
        found = super().read(x, where, state)
        if not where.is_causal:
            raise ValueError("is_causal: got False, needs True: the mean of dint runs over the tokens up to each query")
        return found

    def new_state(self, batch: int, capacity: int, device: Any = None, dtype: Any = None) -> dict[str, Tensor]:
        """Allocate k and v; for the last document the sum of o1 [B, H, 1, E] and the count [B, 1, 1, 1] of its tokens,
        float32 or float64 whatever the dtype, and its id [B, 1]."""
        found = super().new_state(batch, capacity, device, dtype)
        found["sum"] = wide(found["v"].new_zeros(batch, self.heads, 1, self.value_dim))
        found["count"] = found["sum"].new_zeros(batch, 1, 1, 1)
        found["document"] = torch.zeros(batch, 1, dtype=torch.int64, device=found["v"].device)
        return found

    def _mean(self, x: Tensor, where: Where, keys: int, state: dict[str, Tensor] | None) -> Tensor:
        """Running mean of x [B, H, T, E], 0 at padding; a state is read and advanced."""
        ids = _ids(where, x, keys)
        real = (ids >= 0)[:, None, :, None]
        earlier = (0.0, 0.0, torch.zeros_like(ids[:, :1]))
        if state is not None:
            earlier = (state["sum"], state["count"], state["document"])
        first, last = _first_tokens(ids, earlier[2])
        # Padding attends nothing: x is 0 there.
        total = _since(x, first, earlier[0])
        count = _since(real.to(x.dtype), first, earlier[1])
        if state is not None:
            state["sum"].copy_(total[:, :, -1:].detach())
            state["count"].copy_(count[:, :, -1:])
            state["document"].copy_(last)
        return (total / count.clamp(min=1)).masked_fill(~real, 0.0)


def _ids(where: Where, x: Tensor, keys: int) -> Tensor:
    """Document ids [B, T] of the queries, the last T before the key length; 0 without documents, negative: no token."""
    batch, _, tokens, _ = x.shape
    end = torch.full((batch,), keys, device=x.device) if where.key_lengths is None else where.key_lengths.long()
    at = end[:, None] - tokens + torch.arange(tokens, device=x.device)
    ids = torch.zeros_like(at) if where.documents is None else where.documents.long().gather(1, at.clamp(min=0))
    return ids.masked_fill(at < 0, -1)


def _first_tokens(ids: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Of ids [B, T] after a document `before` [B, 1]: the index of the first token of each token's document, -1 where
    it is among the earlier tokens, [B, T]; and the last document's id [B, 1]."""
    step = torch.arange(ids.shape[1] + 1, device=ids.device)
    joined = torch.cat((before, ids), dim=1)
    latest = step.where(joined >= 0, 0).cummax(dim=1).values
    document = joined.gather(1, latest)
    starts = document[:, 1:] != document[:, :-1]
    return (step[1:].where(starts, 0) - 1).cummax(dim=1).values, document[:, -1:]


def _since(x: Tensor, first: Tensor, earlier: Tensor | float) -> Tensor:
    """Sums of x [B, N, T, E] from the token `first` [B, T] up to each; where that is -1, of all of them and what is
    `earlier` [B, N, 1, E]."""
    # In float64, since what other documents add is taken away again.
    total = x.double().cumsum(2)
    at = first[:, None, :, None]
    before = (total - x).gather(2, at.clamp(min=0).expand(x.shape))
    return torch.where(at < 0, total + earlier, total - before).to(x.dtype)
