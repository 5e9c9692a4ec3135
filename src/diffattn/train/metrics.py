"""What a run writes while it goes: metrics.jsonl, trackers where asked, and the progress that a person sees."""

import errno
import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from diffattn.train.config import RunConfig


class Tracker(Protocol):
    """A service that plots numbers."""

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Record numbers of a step."""
        ...

    def close(self) -> None:
        """Wait until everything is recorded."""
        ...


class Metrics:
    """metrics.jsonl of one run: an object a line, keys sorted, whole lines only.

    What depends on the speed of the machine lies under "machine"; the rest is the same, byte for byte, whenever the run
    is repeated. Opening it at the length that a checkpoint remembers drops the rows behind it.
    """

    def __init__(self, path: Path, length: int = 0, trackers: tuple[Tracker, ...] = ()) -> None:
        self._file = path.open("ab", buffering=0)
        self._trackers = trackers
        self.length = length
        written = self._file.seek(0, os.SEEK_END)
        if written < length:
            self._file.close()
            raise ValueError(
                f"{path} has {written} bytes, its checkpoint saw {length}: rows were removed. "
                "Put the file back, or start again in another folder"
            )
        self._file.truncate(length)

    def write(self, row: dict[str, Any]) -> None:
        """Append a row; when the disk is full, the file ends with the row before."""
        line = (json.dumps(row, sort_keys=True, allow_nan=False) + "\n").encode()
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            self._file.truncate(self.length)
            raise
        self.length += len(line)
        for tracker in self._trackers:
            tracker.add(_scalars(row), row["step"])

    def sync(self) -> int:
        """Wait until all rows are on the disk; gives the length of the file in bytes."""
        os.fsync(self._file.fileno())
        return self.length

    def close(self) -> None:
        """Close the file and the trackers."""
        self._file.close()
        for tracker in self._trackers:
            tracker.close()


def _scalars(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row under the names that trackers show, such as train/loss or lambda/layer_0_mean."""
    numbers: dict[str, float] = {}
    for name, value in {**row, **row.get("machine", {})}.items():
        if isinstance(value, int | float) and name != "step":
            numbers[f"{row['kind']}/{name}"] = value
    for layer, summary in enumerate(row.get("layers", ())):
        for name, value in (summary or {}).items():
            if not isinstance(value, list):
                numbers[f"{row['kind']}/layer_{layer}_{name}"] = value
    return numbers


def open_trackers(run: RunConfig, folder: Path, step: int) -> tuple[Tracker, ...]:
    """The trackers that the config asks for; `step`: updates done before, for a run that goes on.

    Raises ValueError naming what to install where a package is missing.
    """
    trackers: list[Tracker] = []
    if run.train.tensorboard:
        trackers.append(_TensorBoard(folder, step))
    if run.train.wandb:
        trackers.append(_Wandb(run, folder))
    return tuple(trackers)


class _TensorBoard:
    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(_missing("tensorboard")) from error
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, run: RunConfig, folder: Path) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ValueError(_missing("wandb")) from error
        identity = folder / "wandb_id"
        if not identity.exists():
            identity.write_text(secrets.token_hex(8))
        self._run = wandb.init(
            project="diffattn",
            name=folder.name,
            id=identity.read_text(),
            resume="allow",
            dir=str(folder),
            config=run.to_dict(),
        )

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        self._run.finish()


def _missing(package: str) -> str:
    return (
        f"train.{package} is on, but {package} is not installed; "
        f"pip install 'diffattn[{package}]', or leave it off: metrics.jsonl is always written"
    )


class Display:
    """Progress on stderr: a bar with loss and time left on a terminal, a line per training row in a pipe."""

    def __init__(self, steps: int, step: int, quiet: bool) -> None:
        self._steps, self._quiet, self._bar = steps, quiet, None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=steps, completed=step)

    def advance(self, step: int) -> None:
        """Move the bar to a step."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def row(self, row: dict[str, Any], step_seconds: float) -> None:
        """Show the loss of a training row or an evaluation; `step_seconds` tells the time that is left."""
        if row["kind"] not in ("train", "eval"):
            return
        text = f"{'dev loss' if row['kind'] == 'eval' else 'loss'} {row['loss']:.4f}"
        if self._bar is not None and row["kind"] == "train":
            self._bar.update(self._task, description=f"{text}  {row['machine']['tokens_per_second']:,.0f} tokens/s")
        elif self._bar is not None:
            self._bar.console.print(f"step {row['step']}: {text}")
        elif row["kind"] == "train":
            left = round((self._steps - row["step"]) * step_seconds)
            speed = f"{row['machine']['tokens_per_second']:,.0f} tokens/s"
            self.say(f"step {row['step']}/{self._steps}  {text}  {speed}  left {left // 60}:{left % 60:02d}")
        else:
            self.say(f"step {row['step']}/{self._steps}  {text}")

    def say(self, message: str) -> None:
        """Print one line, whatever kind of output this is, unless quiet."""
        if self._bar is not None:
            self._bar.console.print(message, markup=False, highlight=False)
        elif not self._quiet:
            print(message, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
