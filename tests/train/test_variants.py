"""Every variant trains: its loss falls, whatever its map is."""

import math
from pathlib import Path

import pytest

from diffattn.train.trainer import train
from diffattn.variants import names
from support.training import rows, tiny_run

# `dex` starts from a trained model only; its own tests train it.
DRAWN = [name for name in names() if name != "dex"]


@pytest.mark.parametrize("name", DRAWN)
def test_the_loss_falls(name: str, tmp_path: Path) -> None:
    outcome = train(tiny_run(name, steps=40, learning_rate=1e-2), tmp_path, quiet=True)
    losses = [row["loss"] for row in rows(tmp_path, "train")]
    assert outcome.status == "finished" and all(map(math.isfinite, losses))
    # Of ln 24 = 3.2 nats at the start, what can be learned in 40 steps is which tokens are values: ln 8 = 2.1.
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5
