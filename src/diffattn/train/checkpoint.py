"""Checkpoints: complete or absent, refused where they belong to another run.

`checkpoints/step-000500/` holds model.safetensors, optimizer.safetensors and trainer.json. A folder gets its name only
when its files are on the disk, so whatever has the name can be gone on from, whenever the process was killed.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from diffattn.files import atomic_folder, differences
from diffattn.train.optim import AdamW


@dataclass(frozen=True)
class Progress:
    """What a run must remember besides tensors; there is no random state, since batches are functions of the step."""

    step: int
    """Completed updates."""
    metrics_bytes: int
    """Length of metrics.jsonl at this step: rows behind it are written again."""
    seconds: float
    """Training time until here, evaluations not counted."""
    loss: float | None
    """Latest dev loss, nats per token."""


def save(
    folder: Path, model: nn.Module, optimizer: AdamW, progress: Progress, fingerprint: dict[str, Any], keep: int
) -> Path:
    """Write the checkpoint of this step below `folder`, remove all but the newest `keep`; gives its path."""
    target = folder / f"step-{progress.step:06d}"
    if not target.exists():
        with atomic_folder(target) as partial:
            save_file(tensors(model), partial / "model.safetensors")
            save_file(optimizer.state(), partial / "optimizer.safetensors")
            text = json.dumps({**asdict(progress), "fingerprint": fingerprint}, indent=1, sort_keys=True)
            (partial / "trainer.json").write_text(text + "\n", encoding="utf-8")
    for old in found(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def restore(path: Path, model: nn.Module, optimizer: AdamW, fingerprint: dict[str, Any]) -> Progress:
    """Load a checkpoint into model and optimizer; ValueError names what differs where it belongs to another run."""
    try:
        saved = json.loads((path / "trainer.json").read_text(encoding="utf-8"))
        refuse_difference(saved.pop("fingerprint"), fingerprint, f"the checkpoint {path}")
        weights = load_file(path / "model.safetensors")
        own = tensors(model)
        refuse_difference(_shapes(weights), _shapes(own), f"the checkpoint {path}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(weights[name])
        optimizer.load(load_file(path / "optimizer.safetensors"))
        return Progress(**saved)
    except (OSError, SafetensorError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"the checkpoint {path} cannot be read ({error}); remove that folder to go on from the one before"
        ) from error


def found(folder: Path) -> list[Path]:
    """All complete checkpoints, oldest first; what a killed process left unfinished is not among them."""
    return sorted(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """A model's parameters and saved buffers by name; one that has two names (tied weights) comes once."""
    kept: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            seen.add(tensor.data_ptr())
            kept[name] = tensor
    return kept


def refuse_difference(there: Mapping[str, Any], here: Mapping[str, Any], owner: str) -> None:
    """Raise ValueError naming up to three entries in which `owner` (there) differs from this run (here)."""
    pairs = differences(json.loads(json.dumps(there)), json.loads(json.dumps(here)))
    lines = [f"{path} is {before} there and {now} here" for path, before, now in pairs]
    if lines:
        more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
        raise ValueError(
            f"{owner} belongs to another run: {'; '.join(lines[:3])}{more}; choose another folder, or undo the change"
        )


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    return {f"weight {name}": f"{list(tensor.shape)} {tensor.dtype}" for name, tensor in state.items()}
