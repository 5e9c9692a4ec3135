"""The losses that a verdict is made of: one number per arm, seed and budget, from a plan's runs or from anybody's CSV."""

from dataclasses import dataclass, field
from pathlib import Path

Runs = dict[str, dict[int, float]]
"""Arm -> seed -> final value. A loss that is not finite is a failed run; of a tokens metric, inf means "never"."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Final values of the primary metric, per budget of tokens."""

    full: Runs
    """Every arm at the full budget; the baseline is one of them."""
    quarter: Runs = field(default_factory=dict)
    """The same arms at a quarter of the tokens, each with a full schedule of its own; may be empty."""
    ruler: dict[int, float] = field(default_factory=dict)
    """Seed -> value of the baseline given 1.25 x tokens; empty when the plan has no ruler."""


def read_losses(path: Path, baseline: str | None = None) -> tuple[Losses, str]:
    """Losses and the baseline's name from a CSV with the columns arm, seed, budget (full, quarter, ruler) and loss."""
    raise NotImplementedError
