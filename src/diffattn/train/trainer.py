"""The training loop, read top to bottom."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diffattn.train.config import RunConfig


@dataclass(frozen=True)
class Outcome:
    """How a run ended: status, completed steps, last dev loss in nats per token (None before the first evaluation)."""

    status: Literal["finished", "non-finite", "interrupted"]
    step: int
    loss: float | None


def train(run: RunConfig, folder: Path, *, quiet: bool = False) -> Outcome:
    """Train `run` in `folder`; goes on from the newest checkpoint there, does nothing where `done` exists."""
    raise NotImplementedError
