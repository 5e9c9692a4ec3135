"""Where the mass of one attention map lies: on the answer, the first token, near or far, on few keys or on many.

B windows, H heads, T tokens of a window. Maps are [B, H, T, T] and 0 where a query does not see a key.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from diffattn.evals.inside import DEAD, DISTANCES, RANKS, Allocation, Curve, MapInside, PerHead, Share
from diffattn.evals.seen import Frame
from diffattn.evals.sums import Sums, curve, numbers, over_batch, per_head

NOT_CONVEX = 1e-6
"""Weights below minus this make a row non-convex, after division by its sum."""
EVERY = 8
"""Rows are sorted, and gradients binned, in every so many, the last one included."""


class MapSums:
    """Totals of one map of one layer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sums = Sums()

    def add(self, map: Tensor, coefficient: Tensor, frame: Frame) -> None:
        """Take in a map [B, H, T, T] and its coefficient, broadcastable to [B, H, T, 1]."""
        size = map.abs()
        total, signed = size.sum(-1), map.sum(-1)
        self._allocate(map, size, total, signed, frame)
        self._shape(map, total, signed, frame)
        self._spread(size, total, frame)
        self._profile(map, size, frame)
        flat = map.transpose(0, 1).flatten(1)
        self.sums.add(
            windows_rows=map.new_tensor(map.shape[0] * map.shape[2]),
            coefficient=over_batch(coefficient.expand(*map.shape[:3], 1)),
            gram=flat @ flat.T,
        )

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

    def _spread(self, size: Tensor, total: Tensor, frame: Frame) -> None:
        """On how many keys the mass lies, and which get none."""
        tiny = torch.finfo(size.dtype).tiny
        # log(0) would make NaN of 0 log(0).
        logs = (size + tiny).log_()
        safe = total.clamp(min=tiny)
        entropy = safe.log() - (size * logs).sum(-1) / safe
        some = some_rows(size) / some_rows(safe[..., None])
        largest = some.topk(min(RANKS, some.shape[-1]), dim=-1).values
        later = frame.visible.tril(-1).any(-2)
        alive = (size.tril(-1).amax(-2) >= DEAD) & later
        self.sums.add(
            effective_keys=over_batch(entropy.exp()),
            sorted=F.pad(largest, (0, RANKS - largest.shape[-1])).sum((0, 2)),
            sorted_rows=size.new_tensor(some.shape[0] * some.shape[2]),
            keys=later.sum(),
            alive=over_batch(alive.to(size.dtype)),
        )

    def _profile(self, map: Tensor, size: Tensor, frame: Frame) -> None:
        """How mass falls with distance."""
        seen = frame.visible.to(map.dtype)
        entries, signed, absolute = (by_distance(x) for x in (seen, map, size))
        self.sums.grow(distance_entries=entries, distance_signed=signed, distance_mass=absolute)

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


def by_distance(map: Tensor) -> Tensor:
    """Sum [B, H, T, T], 0 above the diagonal, over the entries of each bin of `DISTANCES` that T reaches: [H, bins]."""
    tokens = map.shape[-1]
    summed = map.sum(0).contiguous()
    # Row t begins at t * T: a step of T + 1 a row keeps the distance. What an entry before the first key reads instead
    # is the end of the row above, which lies above the diagonal.
    padded = F.pad(summed.flatten(1), (tokens - 1, 0))
    apart = padded.as_strided((len(summed), tokens, tokens), (padded.shape[1], tokens + 1, 1)).sum(1).flip(-1)
    edges = [edge for edge in DISTANCES if edge < tokens]
    return torch.stack([apart[:, a:b].sum(-1) for a, b in zip(edges, [*edges[1:], tokens], strict=True)], dim=-1)


def some_rows(values: Tensor) -> Tensor:
    """Every 8th row of [B, H, T, n]."""
    return values[:, :, (values.shape[2] - 1) % EVERY :: EVERY]
