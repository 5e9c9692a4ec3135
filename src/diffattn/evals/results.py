"""Results of tasks as files: written in one way by `eval` and by a comparison, whose runs are put to them once each."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffattn.files import finite, write_json


def result_file(folder: Path, name: str) -> Path:
    """Where the result of a task lies; some file systems know no colon."""
    return folder / f"{name.replace(':', '-')}.json"


def answers_file(folder: Path, name: str, model: str) -> Path:
    """Where the answers of a model, by its hash, to a task are kept, of all ways to sample together."""
    return result_file(folder, f"{name}-{model}").with_suffix(".jsonl")


def write_result(folder: Path, name: str, found: dict[str, Any]) -> None:
    """Write a result, whole or not at all; an open end of an interval is null."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(result_file(folder, name), finite(found))


def has_result(run: Path, name: str, limit: int, seed: int) -> bool:
    """Whether a run's evals/ holds what a comparison asks, rather than what somebody asked of its model since."""
    file = result_file(run / "evals", name)
    return file.exists() and json.loads(file.read_text(encoding="utf-8")).get("asked") == _asked(limit, seed)


def _asked(limit: int, seed: int) -> dict[str, int]:
    return {"limit": limit, "seed": seed}


def complete_results(run: Path, names: Sequence[str], limit: int, seed: int) -> None:
    """Put the model of a finished run to the tasks, with their defaults, whose results its evals/ lacks.

    limit: at most so many items of each. seed: which items are drawn. What a task cannot do with this model stands in
    its file under "failed", in words: a comparison goes on.
    """
    missing = [name for name in names if not has_result(run, name, limit, seed)]
    if not missing:
        return
    from diffattn.evals.base import Progress
    from diffattn.evals.opening import open_reader
    from diffattn.evals.tasks import TASKS

    reader = open_reader(run / "model")
    for name in missing:
        try:
            found = TASKS[name]().run(reader, limit, seed, Progress(quiet=True)).to_dict()
        except ValueError as error:
            found = {"task": name, "failed": str(error)}
        write_result(run / "evals", name, found | {"asked": _asked(limit, seed)})
