"""Where the mass of one attention map lies: on the answer, the first token, near or far, on few keys or on many.

B windows, H heads, T tokens of a window. Maps are [B, H, T, T] and 0 where a query does not see a key.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from diffattn.evals.inside import DEAD, RANKS, Allocation, Curve, MapInside, PerHead, Share
from diffattn.evals.seen import Frame, by_distance
from diffattn.evals.sums import Sums, curve, numbers, over_batch, per_head

NOT_CONVEX = 1e-6
"""Weights below minus this make a row non-convex, after division by its sum."""
EVERY = 17
"""Rows are sorted, and gradients binned, in every so many, the last one included. Odd, since in recall every other row
is a question: an even step from the last row would meet none."""


class MapSums:
    """Totals of one map of one layer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sums = Sums()

    def add(self, map: Tensor, coefficient: Tensor, frame: Frame) -> Tensor:
        """Take in a map [B, H, T, T] and its coefficient, broadcastable to [B, H, T, 1].

        Gives the entropy of the rows of |map|, divided by their sums: [B, H, T] nats.
        """
        size = map.abs()
        total, signed = size.sum(-1), map.sum(-1)
        self._allocate(map, size, total, signed, frame)
        self._shape(map, total, signed, frame)
        entropy = self._spread(size, total)
        self._profile(map, size, frame)
        self._count_dead(size, frame)
        flat = map.transpose(0, 1).flatten(1)
        self.sums.add(
            windows_rows=map.new_tensor(map.shape[0] * map.shape[2]),
            coefficient=over_batch(coefficient.expand(*map.shape[:3], 1)),
            gram=flat @ flat.T,
        )
        return entropy

    def _allocate(self, map: Tensor, size: Tensor, total: Tensor, signed: Tensor, frame: Frame) -> None:
        rows = frame.rows
        self.sums.add(
            row_mass=over_batch(total * rows),
            row_signed=over_batch(signed * rows),
            first_mass=over_batch(frame.at_first(size) * rows),
            first_signed=over_batch(frame.at_first(map) * rows),
        )
        if frame.answers is not None:
            self.sums.add(
                answer_mass=over_batch((size * frame.answers).sum(-1)),
                answer_signed=over_batch((map * frame.answers).sum(-1)),
            )

    def _shape(self, map: Tensor, total: Tensor, signed: Tensor, frame: Frame) -> None:
        """Signs, zeros, and rows that are no weighted mean."""
        entries = frame.visible.sum()
        # A row of negative sum is turned round by the division.
        least = torch.where(signed > 0, map.amin(-1), -map.amax(-1))
        self.sums.add(
            mass=over_batch(total),
            negative=over_batch(total - signed) / 2,
            entries=entries,
            zeros=entries - over_batch(map.sign().abs().sum(-1)),
            not_convex=over_batch(((least < -NOT_CONVEX * signed.abs()) | (signed == 0)).to(map.dtype)),
        )

    def _spread(self, size: Tensor, total: Tensor) -> Tensor:
        """On how many keys the mass lies; gives the rows' entropies."""
        tiny = torch.finfo(size.dtype).tiny
        # log(0) would make NaN of 0 log(0).
        logs = (size + tiny).log_()
        safe = total.clamp(min=tiny)
        entropy = safe.log() - (size * logs).sum(-1) / safe
        some = some_rows(size) / some_rows(safe[..., None])
        largest = some.topk(min(RANKS, some.shape[-1]), dim=-1).values
        self.sums.add(
            effective_keys=over_batch(entropy.exp()),
            sorted=F.pad(largest, (0, RANKS - largest.shape[-1])).sum((0, 2)),
            sorted_rows=size.new_tensor(some.shape[0] * some.shape[2]),
        )
        return entropy

    def _profile(self, map: Tensor, size: Tensor, frame: Frame) -> None:
        """How mass falls with distance."""
        self.sums.grow(distance_signed=by_distance(map), distance_mass=by_distance(size))
        self.sums.grow(distance_entries=frame.distances.to(map.dtype))

    def _count_dead(self, size: Tensor, frame: Frame) -> None:
        """Keys that no later query looks at; the diagonal of |map| is lost."""
        size.diagonal(dim1=-2, dim2=-1).zero_()
        alive = (size.amax(-2) >= DEAD) & frame.later
        self.sums.add(keys=frame.later.sum(), alive=over_batch(alive.to(size.dtype)))

    def result(self, gradient_norm: PerHead | None = None, gradient_by_weight: Curve | None = None) -> MapInside:
        """Divide, once."""
        s = self.sums
        rows, mass = s["windows_rows"], s["mass"]
        squares = s["gram"].diagonal().sqrt()
        return MapInside(
            name=self.name,
            coefficient=per_head(s["coefficient"], rows),
            allocation=self._allocation(),
            negative_mass=per_head(s["negative"], mass),
            exact_zeros=per_head(s["zeros"], s["entries"]),
            non_convex_rows=per_head(s["not_convex"], rows),
            effective_keys=per_head(s["effective_keys"], rows),
            dead_keys=per_head(s["keys"] - s["alive"], s["keys"]),
            weight_by_distance=curve(s["distance_signed"], s["distance_entries"]),
            mass_by_distance=curve(s["distance_mass"], mass[:, None]),
            sorted_mass=curve(s["sorted"], s["sorted_rows"]),
            head_cosine=[numbers(row) for row in s["gram"] / squares / squares[:, None]],
            gradient_norm=gradient_norm,
            gradient_by_weight=gradient_by_weight,
        )

    def _allocation(self) -> Allocation:
        s = self.sums
        total, none = s["row_mass"], torch.zeros_like(s["row_mass"])
        marked = "answer_mass" in s
        answer, answer_signed = (s["answer_mass"], s["answer_signed"]) if marked else (none, none)

        def share(signed: Tensor, absolute: Tensor) -> Share:
            return Share(per_head(signed, total), per_head(absolute, total))

        rest_signed = s["row_signed"] - answer_signed - s["first_signed"]
        return Allocation(
            answer=share(answer_signed, answer) if marked else None,
            first=share(s["first_signed"], s["first_mass"]),
            rest=share(rest_signed, total - answer - s["first_mass"]),
        )


def some_rows(values: Tensor) -> Tensor:
    """Every 17th row of [B, H, T, n]."""
    return values[:, :, (values.shape[2] - 1) % EVERY :: EVERY]
