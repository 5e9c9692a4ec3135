"""The command line: verbs to functions. `diffattn --help` imports no torch, so that it answers at once.

Every user's mistake ends as one line on stderr and exit status 2; a traceback means a defect of ours. Whoever reads
stdout may stop, as `| head` does: then the call ends quietly.
"""

import importlib
import os
import sys
from typing import NamedTuple

from diffattn.cli.arguments import nearest

USAGE = """\
Differential attention for PyTorch: operators, layers, models and fair comparisons.

usage: diffattn VERB [ARGUMENTS]        diffattn VERB --help tells the rest

{verbs}

Heads are always output heads: a Transformer of the same cost as a differential one has twice as many.
"""

# Packages that only some verbs need, and the extra that brings each.
EXTRAS = {
    "scipy": "report",
    "jinja2": "report",
    "datasets": "data",
    "pyarrow": "data",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "lm_eval": "eval",
}


class Verb(NamedTuple):
    """Where a verb's function lies, and the line that `--help` shows."""

    module: str
    function: str
    line: str


VERBS = {
    "compare": Verb("laboratory", "compare", "Train a recipe's arms fairly and write the report."),
    "report": Verb("laboratory", "report", "Write report.html, report.json and report.md again from a plan's folder."),
    "verdict": Verb("laboratory", "verdict", "Judge losses from any trainer: a CSV of arm, seed, budget, loss."),
    "scaling": Verb("scaling", "scaling", "Train a ladder of sizes and budgets: what an arm needs for the same loss."),
    "train": Verb("models", "train", "Train one model: `--variant NAME`, or a run again: `--from config.json`."),
    "eval": Verb(
        "evaluate", "evaluate", "Held-out loss, attention maps, outliers and other tasks, models side by side."
    ),
    "generate": Verb("models", "generate", "Continue a text with a model folder."),
    "prune": Verb("prune", "prune", "What second maps are worth: the loss without them, one after another."),
    "cost": Verb("cost", "cost", "What a model needs before there is one: FLOPs and memory, next to its baseline."),
    "bench": Verb("bench", "bench", "Time attention, a training step, decoding, next to what torch alone offers."),
    "data": Verb("surroundings", "data", "`data prepare SOURCE`: tokenise and split a corpus, print its manifest."),
    "info": Verb(
        "surroundings", "info", "What there is: versions, implementations, variants, sizes, recipes, tasks of eval."
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb and give the exit status.

    0 done, 2 a mistake in the call or its input, 130 interrupted, 141 nobody reads what is printed any more.
    """
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            # Here, for while Python shuts down an error could no longer be caught.
            sys.stdout.flush()
    except BrokenPipeError:
        # What is left goes nowhere; it would be written, and fail, once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE.format(verbs="\n".join(f"  {name:<10}{verb.line}" for name, verb in VERBS.items())))
        return 0
    if argv[0] == "--version":
        from diffattn import __version__

        print(f"diffattn {__version__}")
        return 0
    try:
        if argv[0] not in VERBS:
            raise ValueError(f"unknown verb {argv[0]!r}{nearest(argv[0], list(VERBS))}; `diffattn --help` lists them")
        verb = VERBS[argv[0]]
        return getattr(importlib.import_module(f"diffattn.cli.{verb.module}"), verb.function)(argv[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        print(f"diffattn: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        print(f"diffattn: {error.name} is missing: pip install 'diffattn[{EXTRAS[error.name]}]'", file=sys.stderr)
        return 2
