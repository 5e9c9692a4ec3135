"""The tasks that `diffattn eval --tasks` knows by name, beside loss, maps and outliers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diffattn.evals.base import Progress, Result, Task
from diffattn.evals.hallucination import Hallucination
from diffattn.evals.long_context import LongContext
from diffattn.evals.many_shot import ManyShot
from diffattn.evals.needle import NEEDLES
from diffattn.evals.opening import open_reader
from diffattn.evals.quantise import Quantise
from diffattn.evals.results import answers_file
from diffattn.evals.shift import Shift

TASKS: dict[str, type[Any]] = {
    "hallucination": Hallucination,
    "many_shot": ManyShot,
    "long_context": LongContext,
    "shift": Shift,
    "quantise": Quantise,
    **{task.name: task for task in NEEDLES},
}
"""Name to the dataclass that holds the task's options."""


def run_tasks(
    folder: Path,
    tasks: Mapping[str, Task],
    kept: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
) -> Iterator[tuple[str, Result | ValueError]]:
    """Run tasks on a model folder; gives each result, or why there is none, as soon as it is there.

    kept: folder for answers, so that what was stopped goes on where it ended. limit: at most so many items of each.
    ValueError: no model folder, a model that reads no text.
    """
    reader = open_reader(folder, batch_size)
    for name, task in tasks.items():
        file = answers_file(kept, name, reader.identity) if kept else None
        try:
            yield name, task.run(reader, limit, seed, Progress(file, title=str(folder)))
        except ValueError as error:
            yield name, error
