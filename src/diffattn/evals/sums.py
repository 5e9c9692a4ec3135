"""Totals over any number of windows, and the numbers of each head that come of them."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from diffattn.evals.inside import Curve, PerHead


class Sums:
    """Named totals in float64; each batch adds its own, so that only totals are kept."""

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}

    def add(self, **values: Tensor) -> None:
        """Add tensors of the same shapes as before under their names."""
        for name, value in values.items():
            value = value.detach().double()
            self._totals[name] = self._totals[name] + value if name in self._totals else value

    def grow(self, **values: Tensor) -> None:
        """As `add`, for curves [..., n] that are longer in some batches than in others."""
        for name, value in values.items():
            if (old := self._totals.get(name)) is not None and (missing := value.shape[-1] - old.shape[-1]):
                value = F.pad(value, (0, max(0, -missing)))
                self._totals[name] = F.pad(old, (0, max(0, missing)))
            self.add(**{name: value})

    def __getitem__(self, name: str) -> Tensor:
        return self._totals[name]

    def __contains__(self, name: str) -> bool:
        return name in self._totals


def over_batch(values: Tensor) -> Tensor:
    """Sum [B, H, ...] over everything but the heads: [H]."""
    return values.transpose(0, 1).flatten(1).sum(1)


def per_head(numerator: Tensor, denominator: Tensor | None = None) -> PerHead:
    """Give numerator [H] / denominator [H] or []; None where the quotient is no finite number."""
    quotient = numerator if denominator is None else numerator / denominator
    heads = numbers(quotient)
    return PerHead(mean_of(heads), heads)


def curve(numerator: Tensor, denominator: Tensor) -> Curve:
    """Give numerator [H, n] / denominator (broadcast) as lists."""
    heads = [numbers(row) for row in numerator / denominator]
    return Curve([mean_of(place) for place in zip(*heads, strict=True)], heads)


def numbers(values: Tensor) -> list[float | None]:
    """Give [n] as a list with None for what is not finite."""
    finite = values.isfinite().tolist()
    return [value if known else None for value, known in zip(values.tolist(), finite, strict=True)]


def mean_of(values: Sequence[float | None]) -> float | None:
    """Give the mean of those that are there."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
