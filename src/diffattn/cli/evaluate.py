"""The verb eval: what a model can do, by task."""

from collections.abc import Mapping, Sequence
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from diffattn.cli.arguments import load_plugins, nearest, parse, take_each, take_words
from diffattn.cli.pictures import pictures

if TYPE_CHECKING:
    from diffattn.evals.harness import Harness

Measured = Literal["loss", "maps", "outliers"]
MEASURED: dict[Measured, str] = {
    "loss": "Held-out loss in nats per token and bits per byte, where in the window it falls, and accuracy.",
    "maps": "Where attention goes, λ, and how the two maps of each head relate: means over layers and heads.",
    "outliers": "The largest, the median and the tails of |logits| and |hidden states|.",
}
"""Tasks that read held-out data, side by side, and what they measure."""
TEXT = "a file, a folder, a glob, JSONL, parquet or hf:OWNER/NAME"
GIVEN = {
    "hallucination": '--hallucination.data FILE, JSONL of {"context", "question", "answers"}',
    "many_shot": "--many-shot.data FILE or FOLDER: TREC, CLINC-150, JSONL or CSV of texts and labels",
    "shift": f"--shift.home TEXT --shift.away TEXT ...: {TEXT}",
    "needle_pairs": "none: pairs are drawn",
}
"""How a file is given to tasks that take it in a way of their own."""


def evaluate(argv: list[str]) -> int:
    """Held-out loss, attention maps, outliers and the other tasks, of model folders side by side."""
    from diffattn.evals.tasks import TASKS

    argv, names, harness = _named(load_plugins(argv))
    chosen = [(name, TASKS[name], field(default_factory=TASKS[name])) for name in names if name in TASKS]
    options_of_tasks = make_dataclass("TaskOptions", chosen, frozen=True)
    preset = options_of_tasks()

    def run(
        models: Annotated[
            tuple[Path, ...], Positional, arg(metavar="MODEL [MODEL ...]", help_behavior_hint="(required)")
        ],
        options: Annotated[options_of_tasks, arg(name="")] = preset,  # pyright: ignore[reportInvalidTypeForm]
        source: str | None = None,
        split: Literal["dev", "test"] = "dev",
        tokens: int | None = None,
        limit: int | None = None,
        seed: int = 0,
        batch_size: int = 8,
        out: Path | None = None,
    ) -> int:
        """Prints the held-out loss of a model as JSON; of several models, or other tasks, a table.

        Before these options: --tasks NAME ... (loss, maps, outliers, {tasks}; loss when left out; `diffattn info tasks`
        tells what each measures). The options of a task are shown once it is named: `diffattn eval MODEL --tasks loss
        maps --help`. lm-eval:arc_easy is a task of lm-eval, lm-eval:arc_easy@5 the same after five examples;
        --harness.include FOLDER adds yours to its. Several models are a ladder of checkpoints: do outliers, or the
        share of the first token, grow with size? Tasks that ask items pair two models on the same ones. --out keeps all
        that was measured, and answers, so that a stopped call goes on where it ended; without it they are kept in the
        evals/ of a run's folder. A model whose attention is your own needs --plugin my_attention.py as well.

        Args:
            models: Model folders, for instance runs/quick/text-diff_v1-lr0.005-s0/model.
            options: What the chosen tasks are to do.
            source: The corpus: "stdlib", a file, a folder, a glob, JSONL, parquet or hf:OWNER/NAME; when left out, the
                data that a run's model was trained on, else stdlib.
            split: "dev" or "test".
            tokens: About so many, for outliers exactly; when left out all of the split, but 16384 for maps.
            limit: At most so many items of each task that asks items.
            seed: Which items are drawn.
            batch_size: Windows or items at a time; changes no number.
            out: Folder for eval.json, answers, and a page with heat maps for each task of needles.
        """
        from diffattn.evals.ladder import evaluate_folders

        if not models:
            raise ValueError("`diffattn eval` needs a model folder, for instance runs/mine/model")
        measured: list[Measured] = [name for name in MEASURED if name in names]
        tasks = {name: getattr(options, name) for name, _, _ in chosen} | harness
        corpus = {"source": source, "split": split, "tokens": tokens}
        _refuse_unread(measured, names, source, tokens)
        told, failed = evaluate_folders(models, measured, tasks, corpus, limit, seed, batch_size, out)
        beside = _read_beside(tasks) if source is not None else ()
        print(*filter(None, [told, *beside, *pictures(out, tasks)]), sep="\n")
        if failed:
            raise ValueError("\n".join(failed))
        return 0

    run.__doc__ = (run.__doc__ or "").replace("{tasks}", ", ".join(TASKS))
    return parse(run, argv, "eval")


def _refuse_unread(measured: Sequence[Measured], names: Sequence[str], source: str | None, tokens: int | None) -> None:
    if not measured and (source is not None or tokens is not None):
        raise ValueError(
            f"--source and --tokens are read by {', '.join(MEASURED)}; "
            f"`diffattn info tasks` tells how a file is given to {', '.join(names)}"
        )


def _read_beside(tasks: Mapping[str, object]) -> list[str]:
    """Say which tasks read another text than that of --source."""
    own = {name: getattr(task, "source", None) for name, task in tasks.items() if name not in GIVEN}
    return [f"--source is not read by {name}, whose text is {text!r}" for name, text in own.items() if text]


def described() -> dict[str, str]:
    """Give each task's name, what it measures, and how a file is given to it."""
    from diffattn.evals.harness import OUTSIDE, Harness
    from diffattn.evals.tasks import TASKS

    told = {name: f"{line}\nfile: --source TEXT, {TEXT}" for name, line in MEASURED.items()}
    for name, task in TASKS.items():
        given = GIVEN.get(name, f"--{name.replace('_', '-')}.source TEXT, {TEXT}")
        told[name] = f"{(task.__doc__ or '').splitlines()[0]}\nfile: {given}"
    line = (Harness.__doc__ or "").splitlines()[0]
    return {
        **told,
        f"{OUTSIDE}NAME": f"{line}\nfile: --harness.include FOLDER with tasks of yours in lm-eval's YAML",
    }


def _named(argv: list[str]) -> tuple[list[str], list[str], dict[str, "Harness"]]:
    """Take the tasks out of argv: the rest, their names, and those of lm-eval; ValueError: an unknown one."""
    from diffattn.evals.harness import OUTSIDE, Harness
    from diffattn.evals.tasks import TASKS

    # A folder may be called like a task, for instance the --out of an earlier call.
    known = [*MEASURED, *TASKS]
    argv, names = take_words(argv, "--tasks", lambda word: word in known or not Path(word).exists())
    names = list(dict.fromkeys(names or ["loss"]))
    outside = [name for name in names if name.startswith(OUTSIDE)]
    include: list[str] = []
    if outside:
        argv, include = take_each(argv, "--harness.include")
    harness = {name: Harness.named(name, tuple(map(Path, include))) for name in outside}
    for name in names:
        if name not in (*known, *harness):
            raise ValueError(f"unknown task {name!r}{nearest(name, known)}; there are {', '.join(known)}")
    return argv, names, harness
