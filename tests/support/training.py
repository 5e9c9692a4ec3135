"""Runs so small that a test can train them several times."""

import json
from pathlib import Path
from typing import Any

from diffattn.data import SyntheticData
from diffattn.model.config import ModelConfig
from diffattn.train.config import RunConfig, TrainConfig
from diffattn.variants.base import MixerConfig

TASK = SyntheticData(task="recall", keys=8, values=8, pairs=4, heldout_sequences=16)


def tiny_run(
    variant: str = "diff_v1", *, seed: int = 0, model: dict[str, Any] | None = None, **train: Any
) -> RunConfig:
    """Two layers of width 16 on associative recall, 6 steps of 4 sequences, a row for every step."""
    mixer = MixerConfig.from_dict({"name": variant, "heads": 2})
    sizes = {"vocab_size": 24, "width": 16, "layers": 2, "context": 16, "ffn_width": 24, "mixer": mixer}
    settings = {"steps": 6, "batch_size": 4, "evals": 2, "log_every": 1, "threads": 1, "precision": "float32"}
    return RunConfig(
        model=ModelConfig(**{**sizes, **(model or {})}),
        data=TASK,
        train=TrainConfig(**{**settings, **train}),
        seed=seed,
    )


def rows(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, of one kind or all."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if kind in (None, row["kind"])]


def without_machine(folder: Path) -> str:
    """metrics.jsonl as text, without what depends on the speed of the machine."""
    kept = [{name: value for name, value in row.items() if name != "machine"} for row in rows(folder)]
    return "\n".join(json.dumps(row, sort_keys=True) for row in kept)
