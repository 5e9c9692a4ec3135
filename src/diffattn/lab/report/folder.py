"""A plan's folder as plain data: plan.json, and for each planned run whatever it has written so far."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPLITS = ("dev", "test")


@dataclass(frozen=True)
class Run:
    """One run folder; everything is empty while the run has not begun."""

    folder: str
    arm: str
    budget: str
    """"full", "quarter" (of the tokens) or "ruler" (1.25 x the tokens)."""
    seed: int
    learning_rate: float
    sweep: bool
    """True: it only chose a learning rate, on a seed of its own."""
    status: str
    """"planned", "unfinished", "finished" or "non-finite"."""
    done: dict[str, Any]
    config: dict[str, Any]
    environment: dict[str, Any]
    train: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    lambdas: list[dict[str, Any]]
    heldout: dict[str, dict[str, Any]]
    """Final evaluation by split, as evals/<split>.json."""
    maps: dict[str, Any] | None


@dataclass(frozen=True)
class Task:
    """One task of plan.json and its runs, in the plan's order."""

    plan: dict[str, Any]
    runs: list[Run]


@dataclass(frozen=True)
class Folder:
    """A plan and its tasks."""

    plan: dict[str, Any]
    tasks: list[Task]


def read_folder(path: Path) -> Folder:
    """Read a plan's folder.  ValueError: it holds no plan.json, or a file in it is damaged."""
    if not (path / "plan.json").is_file():
        raise ValueError(
            f"{path} is not the folder of a comparison: it has no plan.json. "
            "Give a folder that `diffattn compare` has written, for example runs/quick."
        )
    plan = _read(path / "plan.json")
    if not isinstance(plan, dict) or not isinstance(plan.get("tasks"), list):
        raise ValueError(
            f'{path / "plan.json"} is not a plan: expected an object with a list "tasks", as `diffattn compare` writes.'
        )
    try:
        tasks = [Task(task, [_read_run(path, run) for run in task["runs"]]) for task in plan["tasks"]]
    except KeyError as error:
        raise ValueError(
            f"{path / 'plan.json'} lacks the key {error}: it was written by another version, or by hand. "
            "Run `diffattn compare` again in a new folder."
        ) from error
    return Folder(plan, tasks)


def _read_run(path: Path, planned: dict[str, Any]) -> Run:
    folder = path / planned["folder"]
    done = _read(folder / "done", {})
    rows = _rows(folder / "metrics.jsonl")
    return Run(
        folder=planned["folder"],
        arm=planned["arm"],
        budget=planned["budget"],
        seed=planned["seed"],
        learning_rate=planned["learning_rate"],
        sweep=planned["sweep"],
        status=done.get("status") or ("unfinished" if folder.is_dir() else "planned"),
        done=done,
        config=_read(folder / "config.json", {}),
        environment=_read(folder / "environment.json", {}),
        train=[row for row in rows if row["kind"] == "train"],
        evals=[row for row in rows if row["kind"] == "eval" and row["split"] == "dev"],
        lambdas=[row for row in rows if row["kind"] == "lambda"],
        heldout={s: _read(folder / "evals" / f"{s}.json") for s in SPLITS if (folder / "evals" / f"{s}.json").exists()},
        maps=_read(folder / "evals" / "maps.json", None),
    )


def _read(path: Path, *default: Any) -> Any:
    if default and not path.exists():
        return default[0]
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): delete it, and `diffattn compare` makes it again."
        ) from error


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; a last line still being written is left out."""
    if not path.exists():
        return []
    *lines, unfinished = path.read_text(encoding="utf-8").split("\n")
    del unfinished
    try:
        return [json.loads(line) for line in lines if line]
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): delete its run folder and run the comparison again.") from error
