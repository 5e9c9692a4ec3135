"""The verb prune: what a model's second maps are worth."""

import json as encoder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from diffattn.cli.arguments import load_plugins, parse

if TYPE_CHECKING:
    from diffattn.evals.prune import Pruning, Step

ROWS = 24
"""Most rows of the table; the JSON has every step."""
WIDTH = 140
"""Columns in a pipe, which has no width of its own."""


def prune(argv: list[str]) -> int:
    """Remove a model's second maps one after another: by the loss that this costs, and by λ."""

    def run(
        model: Annotated[Path, Positional, arg(metavar="MODEL")],
        baseline: Path | None = None,
        source: str | None = None,
        split: Literal["dev", "test"] = "dev",
        tokens: int = 32768,
        batch_size: int = 8,
        json: bool = False,
        out: Path | None = None,
    ) -> int:
        """Prints the loss without the first, the first two, ... all second maps, and what that says of λ.

        Each map is removed alone first; that gives the order, on every other window; the losses are those of the
        windows between. Nothing is trained again. An attention of your own needs --plugin my_attention.py as well.

        Args:
            model: A model folder, for instance runs/quick/text-diff_v1-lr0.005-s0/model.
            baseline: A softmax model to set beside it, from which heads with as many parameters are removed.
            source: The corpus, as for `diffattn eval`; the run's own data when left out.
            split: "dev" or "test".
            tokens: About so many, half of them for the order.
            batch_size: Windows at a time; changes no number.
            json: Print everything as JSON instead.
            out: File for that JSON; evals/prune.json of the run whose model/ this is when left out.
        """
        from diffattn.evals.opening import run_of
        from diffattn.evals.prune import prune_folder

        found = prune_folder(model, baseline, source, split, tokens, batch_size)
        content = {"model": str(model), "baseline_model": baseline and str(baseline), **found.to_dict()}
        text = encoder.dumps(content, indent=1)
        if out is None and (trained := run_of(model)):
            out = trained / "evals" / "prune.json"
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text + "\n", encoding="utf-8")
        if json:
            print(text)
        else:
            _print(found, content["sentence"])
        return 0

    return parse(run, load_plugins(argv), "prune")


def _print(found: "Pruning", sentence: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    table = Table(box=None, pad_edge=False, title_justify="left", padding=(0, 2, 0, 0))
    headers = ["maps\ngone", "parameters", "least loss\nfirst", "loss", "change", "least |λ|\nfirst", "loss", "change"]
    if found.baseline:
        headers += ["baseline's\nheads gone", "parameters", "loss", "change"]
    for header in headers:
        table.add_column(header, justify="left" if "first" in header else "right", no_wrap=True)
    last = len(found.by_loss) - 1
    for count in sorted({round(row * last / min(ROWS, last)) for row in range(min(ROWS, last) + 1)}):
        one, other = found.by_loss[count], found.by_lambda[count]
        cells = [f"{count}", f"{one.parameters:,}", *_named(one), *_named(other)]
        if found.baseline:
            beside = found.baseline[count]
            cells += [f"{beside.count}", f"{beside.parameters:,}", *_numbers(beside)]
        table.add_row(*cells)
    console.print(table)
    console.print(
        f"Nats per token on {found.tokens:,} tokens ({found.data}); ± is a 95 % interval over windows, for this "
        f"trained model.\n{sentence}",
        highlight=False,
        soft_wrap=True,
    )


def _named(step: "Step") -> list[str]:
    return [str(step.last or ""), *_numbers(step)]


def _numbers(step: "Step") -> list[str]:
    return [f"{step.loss:.4f}", f"{step.change:+.4f}" if step.count else ""]
