"""Several models side by side, for instance the checkpoints of a ladder of sizes: loss, maps and outliers of each."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from diffattn.data import SyntheticData
from diffattn.data.base import Split
from diffattn.evals.heldout import held_out, together
from diffattn.evals.instruments import look_inside
from diffattn.evals.outliers import outliers
from diffattn.evals.perplexity import evaluate
from diffattn.evals.sums import mean_of
from diffattn.hub.convert import load

Json = dict[str, Any]
Task = Literal["loss", "maps", "outliers"]


def measure(
    folder: Path,
    tasks: Iterable[Task],
    source: str | None = None,
    split: Split = "dev",
    tokens: int | None = None,
    batch_size: int = 8,
) -> Json:
    """Measure a model folder: {"model", "parameters", "data"} and a part for each task, ready for JSON.

    source: a text as in `TextData`; None: the data of the run whose model/ this is, else Python's standard library.
    tokens: about so many. "maps" holds the outliers too. ValueError: no model folder, no usable text.
    """
    model, tasks = load(folder).eval(), set(tasks)
    data = held_out(folder, model, source)
    found: Json = {
        "model": str(folder),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "data": data.describe(),
    }
    if "loss" in tasks:
        windows = together(data.evaluation(split, tokens), batch_size)
        found["loss"] = evaluate(model, windows, data.token_bytes).to_dict()
        del found["loss"]["documents"]
    if "maps" in tasks:
        answers = isinstance(data.config, SyntheticData)
        found["maps"] = look_inside(model, data.evaluation(split, tokens), answers=answers).to_dict()
        massive = found["maps"].pop("outliers")
        if "outliers" in tasks:
            found["outliers"] = massive
    elif "outliers" in tasks:
        found["outliers"] = outliers(model, data.evaluation(split, tokens)).to_dict()
    return found


def side_by_side(models: Sequence[Json]) -> str:
    """Write `measure`'s results as a table: a column for each model, maps as means over layers and heads."""
    columns = [_numbers(found) for found in models]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *line[1:]]) for row, line in zip(rows, lines, strict=True))


def _numbers(found: Json) -> dict[str, str]:
    cells = {"model": found["model"], "parameters": f"{found['parameters']:,}"}
    if loss := found.get("loss"):
        cells |= {"nats per token": _cell(loss["loss"]), "bits per byte": _cell(loss["bits_per_byte"])}
    if massive := found.get("outliers"):
        for part in ("logits", "hidden"):
            names = (("top1", f"top |{part}|"), ("median", f"median |{part}|"), ("kurtosis", f"kurtosis of {part}"))
            cells |= {name: _cell(massive[part][key]) for key, name in names}
        cells["int8 channels"] = str(massive["int8_channels"])
    if inside := found.get("maps"):
        whole = [layer["maps"][-1] for layer in inside["layers"]]
        pairs = [layer["pair"] for layer in inside["layers"] if layer["pair"]]
        cells |= {
            "share of first token": _mean(map["allocation"]["first"]["absolute"]["mean"] for map in whole),
            "negative mass": _mean(map["negative_mass"]["mean"] for map in whole),
            "effective keys": _mean(map["effective_keys"]["mean"] for map in whole),
            "λ": _mean(pair["lam"]["mean"] for pair in pairs),
            "cos(A1, A2)": _mean(pair["cosine"]["mean"] for pair in pairs),
            "R² of A2 for A1": _mean(pair["r2"]["mean"] for pair in pairs),
        }
    return cells


def _mean(values: Iterable[float | None]) -> str:
    return _cell(mean_of(list(values)))


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
