"""Several models side by side, for instance the checkpoints of a ladder of sizes: loss, maps, outliers and tasks."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from diffattn.data import SyntheticData
from diffattn.data.base import Split
from diffattn.evals.base import Result, paired
from diffattn.evals.base import Task as ItemTask
from diffattn.evals.heldout import held_out, together
from diffattn.evals.instruments import look_inside
from diffattn.evals.outliers import outliers
from diffattn.evals.perplexity import evaluate
from diffattn.evals.results import write_result
from diffattn.evals.sums import mean_of
from diffattn.evals.tasks import run_tasks
from diffattn.hub.convert import load

Json = dict[str, Any]
Task = Literal["loss", "maps", "outliers"]


def evaluate_folders(
    folders: Sequence[Path],
    measured: Sequence[Task],
    tasks: Mapping[str, ItemTask],
    corpus: Mapping[str, Any],
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 8,
    out: Path | None = None,
) -> str:
    """Measure model folders, keep what was found, and give what to print: JSON for one model's loss, else a table.

    measured: what reads held-out data, with corpus = `measure`'s source, split and tokens. tasks: further ones by name.
    out: folder for eval.json and answers; None: the evals/ of each model's run, where it has one.
    """
    found: list[Json] = []
    results: list[dict[str, Result]] = []
    for folder in folders:
        run = Path(folder).absolute().parent
        place = out or (run / "evals" if (run / "config.json").is_file() else None)
        part: Json = {"model": str(folder)}
        if measured or not tasks:
            part = measure(folder, measured, **corpus, batch_size=batch_size)
        done = run_tasks(folder, tasks, place / "answers" if place else None, limit, seed, batch_size) if tasks else {}
        part["tasks"] = {name: result.to_dict() for name, result in done.items()}
        if place is not None and out is None:
            for name, result in part["tasks"].items():
                write_result(place, name, result)
        found.append(part)
        results.append(done)
    if out is not None:
        write_result(out, "eval", {"models": found})
    if len(found) == 1 and not tasks and list(measured) == ["loss"]:
        return json.dumps(found[0]["loss"], indent=1)
    return "\n".join([side_by_side(found), *_pairs(folders, results)])


def _pairs(folders: Sequence[Path], results: Sequence[dict[str, Result]]) -> Iterable[str]:
    """Each further model against the first one, on the same items."""
    for folder, other in zip(folders[1:], results[1:], strict=True):
        for name, result in other.items():
            first = results[0][name]
            if result.outcomes and result.outcomes.keys() == first.outcomes.keys():
                difference, p = paired(first, result)
                chance = "" if p is None else f", McNemar p = {p:.2g}"
                yield f"{name}, {folder} - {folders[0]} on the same items: {difference}{chance}; these models only"


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
    tokens: about so many, spread over the split; for outliers exactly, the first ones. ValueError: no model folder, no
    usable text, too few tokens for the outliers.
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
        found["loss"] = evaluate(model, windows, data.token_bytes, data.grader).to_dict()
        del found["loss"]["documents"]
    if "maps" in tasks:
        answers = isinstance(data.config, SyntheticData)
        found["maps"] = look_inside(model, data.evaluation(split, tokens), answers=answers).to_dict()
        del found["maps"]["outliers"]
    if "outliers" in tasks:
        found["outliers"] = outliers(model, data.evaluation(split), tokens).to_dict()
    return found


def side_by_side(models: Sequence[Json]) -> str:
    """Write what was found as a table: a column for each model, maps as means over layers and heads; "-": not there."""
    columns = [_numbers(found) for found in models]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "-") for column in columns)] for name in names]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _numbers(found: Json) -> dict[str, str]:
    cells = {"model": found["model"]}
    if parameters := found.get("parameters"):
        cells["parameters"] = f"{parameters:,}"
    if loss := found.get("loss"):
        cells |= {"nats per token": _cell(loss["loss"]), "bits per byte": _cell(loss["bits_per_byte"])}
    if massive := found.get("outliers"):
        for part in ("logits", "hidden"):
            names = (("top1", f"top |{part}|"), ("median", f"median |{part}|"), ("kurtosis", f"kurtosis of {part}"))
            cells |= {name: _cell(massive[part][key]) for key, name in names}
        others = massive["hidden_apart"]["others"]
        cells |= {
            "largest |hidden| / its layer's rms": _cell(massive["hidden_ratio"]),
            "largest |hidden| behind the first token": _cell(others and others["top1"]),
            "int8 channels": str(massive["int8_channels"]),
        }
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
    for name, result in found.get("tasks", {}).items():
        low, high = (_cell(result["measure"][end]) for end in ("low", "high"))
        cells[f"{name}: {result['metric']}"] = (
            f"{_cell(result['measure']['value'])} ({low} to {high}, n = {result['measure']['n']})"
        )
        cells |= {f"{name}: {what}": _cell(value) for what, value in result["parts"].get("beside", {}).items()}
    return cells


def _mean(values: Iterable[float | None]) -> str:
    return _cell(mean_of(list(values)))


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
