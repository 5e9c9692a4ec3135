"""How far a plan is: bars on a terminal, plain lines in a pipe."""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diffattn.lab.budget import run_flops
from diffattn.lab.runs import Run


class Progress:
    """Which runs are going, how many are left, and about how long they take; a `with` block on stderr."""

    def __init__(self, folder: Path, runs: Iterable[Run], title: str, *, quiet: bool = False) -> None:
        self.folder = folder
        self.title = title
        self.work = {run.folder: run_flops(run.config) for run in runs}
        self.total = sum(self.work.values())
        self.done = 0.0
        self.finished = 0
        self.start = time.monotonic()
        self.console, self.bars, self.tasks = None, None, {}
        if not quiet:
            self._open()

    def __enter__(self) -> "Progress":
        if self.bars:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars:
            self.bars.stop()

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        if self.console:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def finish(self, run: Run, status: str) -> None:
        """Count a run as done and say how it ended."""
        self.done += self.work[run.folder]
        self.finished += 1
        if self.bars and run.folder in self.tasks:
            self.bars.remove_task(self.tasks.pop(run.folder))
        record = read_done(self.folder / run.folder)
        loss = f", {record['loss']:.3f} nats on dev" if isinstance(record.get("loss"), float) else ""
        seconds = f", {record['seconds']:.0f} s" if "seconds" in record else ""
        left = f"; {duration(self.left([]))} left" if self.finished < len(self.work) else ""
        self.say(f"{self.title} {self.finished}/{len(self.work)}  {run.folder}  {status}{loss}{seconds}{left}")

    def draw(self, active: Mapping[int, Run]) -> None:
        """Bring the bars up to the last step that each run has written down."""
        if not self.bars:
            return
        shares = {run.folder: step(self.folder / run.folder) / run.config.train.steps for run in active.values()}
        for run in active.values():
            if run.folder not in self.tasks:
                self.tasks[run.folder] = self.bars.add_task(run.folder, total=1.0, note="")
            self.bars.update(self.tasks[run.folder], completed=shares[run.folder])
        done = self.done + sum(share * self.work[folder] for folder, share in shares.items())
        note = f"{self.finished}/{len(self.work)} runs, {duration(self.left(shares.items()))} left"
        self.bars.update(self.tasks[""], completed=done, note=note)

    def left(self, shares: Iterable[tuple[str, float]]) -> float:
        """Seconds left, if the rest goes as fast as what was done; nan at the beginning."""
        done = self.done + sum(share * self.work[folder] for folder, share in shares)
        elapsed = time.monotonic() - self.start
        return elapsed * (self.total - done) / done if done else float("nan")

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.console = Console(stderr=True)
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
            self.bars = Progress(*columns, console=self.console, transient=True)
            self.tasks[""] = self.bars.add_task(self.title, total=self.total, note="")


def step(folder: Path) -> int:
    """The last step that a run has written into metrics.jsonl; 0 where there is none."""
    try:
        with (folder / "metrics.jsonl").open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - 4096))
            lines = stream.read().decode(errors="replace").split("\n")
    except FileNotFoundError:
        return 0
    for line in reversed(lines[:-1]):
        if line.startswith("{"):
            return int(json.loads(line).get("step", 0))
    return 0


def read_done(folder: Path) -> dict[str, Any]:
    """What a run wrote when it ended; empty while it has not."""
    path = folder / "done"
    return json.loads(path.read_text()) if path.exists() else {}


def duration(seconds: float) -> str:
    """Say a time as a person would: 40 s, 12 min, 3.5 h, 2 days."""
    if seconds != seconds:
        return "unknown time"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h"), (63072000, 86400, "days")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.1f} {name}" if name in ("h", "days") and value < 10 else f"{value:.0f} {name}"
    return f"{seconds / 31557600:,.0f} years"
