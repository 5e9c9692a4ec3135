"""A plan's folder as plain data: plan.json, and for each planned run whatever it has written so far."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.lab.report import shapes

SPLITS = ("dev", "test")
REMEDY = "delete it, and `diffattn compare` makes it again"
REMEDY_OF_RUN = "delete its run folder and run the comparison again"
REMEDY_OF_PLAN = "it was written by another version, or by hand; run `diffattn compare` again in a new folder"


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
    inside: dict[str, Any] | None
    """What the instruments found in the finished model, as evals/inside.json."""
    results: dict[str, dict[str, Any]]
    """What the tasks beside the loss found, by name, as evals/<task>.json."""


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
    plan = _read(path / "plan.json", shapes.PLAN, REMEDY_OF_PLAN)
    for task in plan["tasks"]:
        arms = [arm["name"] for arm in task["arms"]]
        for name in (task["baseline"], *(run["arm"] for run in task["runs"])):
            if name not in arms:
                raise ValueError(
                    f"{path / 'plan.json'}: task '{task['name']}' has no arm '{name}', only {', '.join(arms)}; "
                    f"{REMEDY_OF_PLAN}."
                )
    return Folder(
        plan,
        [Task(task, [_read_run(path, run, task.get("evals") or ()) for run in task["runs"]]) for task in plan["tasks"]],
    )


def _read_run(path: Path, planned: dict[str, Any], tasks: Sequence[str]) -> Run:
    folder = path / planned["folder"]
    done = _read_if_there(folder / "done", shapes.DONE) or {}
    if done.get("status") == "finished":
        _check(done, shapes.FINISHED, folder / "done", REMEDY)
    evals = folder / "evals"
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
        config=_read_if_there(folder / "config.json", shapes.CONFIG) or {},
        environment=_read_if_there(folder / "environment.json", shapes.ENVIRONMENT) or {},
        train=[row for row in rows if row["kind"] == "train"],
        evals=[row for row in rows if row["kind"] == "eval" and row["split"] == "dev"],
        lambdas=[row for row in rows if row["kind"] == "lambda"],
        heldout={s: found for s in SPLITS if (found := _read_if_there(evals / f"{s}.json", shapes.HELDOUT))},
        maps=_read_if_there(evals / "maps.json", shapes.MAPS),
        inside=_read_if_there(evals / "inside.json", shapes.INSIDE),
        results={t: found for t in tasks if (found := _read_if_there(evals / f"{t}.json", shapes.result(t)))},
    )


def _read_if_there(path: Path, shape: dict[str, Any]) -> Any:
    return _read(path, shape, REMEDY) if path.exists() else None


def _read(path: Path, shape: dict[str, Any], remedy: str) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}): {remedy}.") from error
    _check(value, shape, path, remedy)
    return value


def _check(value: Any, shape: dict[str, Any], where: Path | str, remedy: str) -> None:
    words = shapes.fault(value, shape)
    if words:
        raise ValueError(f"{where} {words}: {remedy}.")


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; a last line still being written is left out."""
    if not path.exists():
        return []
    try:
        *lines, unfinished = path.read_bytes().split(b"\n")
        del unfinished
        rows = [(number, json.loads(line)) for number, line in enumerate(lines, 1) if line.strip()]
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}): {REMEDY_OF_RUN}.") from error
    for number, row in rows:
        _check(row, shapes.ROW, f"{path}, line {number},", REMEDY_OF_RUN)
        _check(row, shapes.ROWS.get(row["kind"], {}), f"{path}, line {number},", REMEDY_OF_RUN)
    return [row for _, row in rows]
