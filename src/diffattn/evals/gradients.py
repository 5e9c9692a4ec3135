"""How the loss pulls at each attention map: d loss / d logits, from the gradient of the heads' outputs.

B windows, H heads, T tokens, E width of a value, G value groups. The loss is summed over tokens, in nats.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from diffattn.evals.allocation import some_rows
from diffattn.evals.inside import WEIGHTS, Curve, PerHead
from diffattn.evals.sums import Sums, curve, over_batch, per_head


class GradientSums:
    """Totals of one map of one layer."""

    def __init__(self) -> None:
        self.sums = Sums()

    def add(self, map: Tensor, gradient: Tensor, visible: Tensor) -> None:
        """Take in a map and d loss / d logits, both [B, H, T, T], and which entries count, [B, 1, T, T]."""
        heads = map.shape[1]
        sampled = (map.abs(), gradient.abs(), visible.expand_as(map))
        some, pull, seen = (some_rows(x).transpose(0, 1).flatten(1) for x in sampled)
        decades = (some.clamp(min=1e-30).log10().floor() + len(WEIGHTS)).clamp(0, len(WEIGHTS) - 1).long()
        place = (decades + len(WEIGHTS) * torch.arange(heads, device=map.device)[:, None]).flatten()
        binned = [
            torch.bincount(place, weights=x.double().flatten(), minlength=heads * len(WEIGHTS)).view(heads, -1)
            for x in (seen, pull)
        ]
        self.sums.add(
            rows=map.new_tensor(map.shape[0] * map.shape[2]),
            squares=over_batch(gradient.square().sum(-1)),
            entries=binned[0],
            pull=binned[1],
        )

    def result(self) -> tuple[PerHead, Curve]:
        """Give `MapInside.gradient_norm` and `gradient_by_weight`."""
        norm = (self.sums["squares"] / self.sums["rows"]).sqrt()
        return per_head(norm), curve(self.sums["pull"], self.sums["entries"])


def logit_gradients(maps: Sequence[Tensor], logits: Tensor, effective: Tensor, of_effective: Tensor) -> list[Tensor]:
    """Give d loss / d logits of each map, [B, H, T, T].

    logits [B, H, T, T]: zeros that were added to the logits of all maps; each map's share is told apart by going
    through that map alone. of_effective: d loss / d effective map.
    """
    of_maps = torch.autograd.grad(effective, maps, of_effective, retain_graph=True)
    found = []
    for number, (map, of_map) in enumerate(zip(maps, of_maps, strict=True)):
        inputs = [logits, *maps[:number]]
        own, *handed_on = torch.autograd.grad(map, inputs, of_map, retain_graph=True, allow_unused=True)
        # A map whose queries know what an earlier map read brings gradients that are of that map's logits.
        for earlier, part in zip(maps, handed_on, strict=False):
            if part is not None:
                own = own - torch.autograd.grad(earlier, logits, part, retain_graph=True)[0]
        found.append(own)
    return found


def before_the_norm(read: Tensor, out: Tensor, gradient: Tensor, eps: float | None, weight: Tensor | None) -> Tensor:
    """Take d loss / d out back to d loss / d read, all [B, H, T, E], where out = c weight RMSNorm(read), c per row.

    eps None: there is no norm, out = c read. c is what out shows: the layer's gain, or a gate of each head and token.
    """
    if eps is None:
        return row_factor(read, out) * gradient
    root = (read.square().mean(-1, keepdim=True) + eps).rsqrt()
    weighted = gradient if weight is None else gradient * weight
    c = row_factor(normed(read, eps, weight), out)
    return c * root * (weighted - read * root.square() * (read * weighted).mean(-1, keepdim=True))


def normed(read: Tensor, eps: float | None, weight: Tensor | None) -> Tensor:
    """Give weight RMSNorm(read), or read where there is no norm."""
    if eps is None:
        return read
    unit = read * (read.square().mean(-1, keepdim=True) + eps).rsqrt()
    return unit if weight is None else unit * weight


def row_factor(of: Tensor, out: Tensor) -> Tensor:
    """Give c [..., 1] that brings c x `of` closest to `out` in each row; 0 where `of` is 0."""
    squares = of.square().sum(-1, keepdim=True)
    return (of * out).sum(-1, keepdim=True) / squares.clamp(min=math.ldexp(1, -120))
