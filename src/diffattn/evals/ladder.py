"""Several models side by side, for instance the checkpoints of a ladder of sizes: loss, maps, outliers and tasks."""

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from diffattn.data import SyntheticData
from diffattn.data.base import Batch, Split
from diffattn.evals.base import Progress, Result, pairable, paired
from diffattn.evals.base import Task as ItemTask
from diffattn.evals.heldout import held_out, together
from diffattn.evals.inside import INSIDE_TOKENS
from diffattn.evals.instruments import look_inside
from diffattn.evals.opening import run_of, tokenizer_of
from diffattn.evals.outliers import outliers
from diffattn.evals.perplexity import evaluate
from diffattn.evals.results import write_result
from diffattn.evals.retrieved import heat_table
from diffattn.evals.sums import mean_of
from diffattn.evals.table import WIDEST, as_text, room
from diffattn.evals.tasks import run_tasks
from diffattn.hub.convert import load, read_config
from diffattn.variants.base import check_whole

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
) -> tuple[str, list[str]]:
    """Measure model folders, keep what was found, and give what to print: JSON for one model's loss, else a table.

    measured: what reads held-out data, with corpus = `measure`'s source, split and tokens. tasks: further ones by name.
    out: folder for eval.json and answers; None: the evals/ of each model's run, where it has one. Second: what could
    not be measured of which model, and why; the rest is. ValueError, before anything is measured: no model folder,
    tasks for a model that reads no text, options or files of a task that cannot be used, a limit or tokens below 1, a
    negative seed.
    """
    for name, count in (("limit", limit), ("tokens", corpus.get("tokens"))):
        check_whole(name, 1 if count is None else count, 1)
    check_whole("seed", seed, 0)
    for folder in folders:
        (tokenizer_of if tasks else read_config)(folder)
    _check(tasks)
    if out is not None:
        _make(out)
    found: list[Json] = []
    results: list[dict[str, Result]] = []
    failed: list[str] = []
    for folder in folders:
        run = run_of(folder)
        place = out or (run and run / "evals")
        part: Json = {"model": str(folder)}
        if measured or not tasks:
            part = measure(folder, measured, **corpus, batch_size=batch_size)
        part["tasks"], done = {}, {}
        found.append(part)
        results.append(done)
        kept = place / "answers" if place else None
        for name, result in run_tasks(folder, tasks, kept, limit, seed, batch_size) if tasks else ():
            if isinstance(result, ValueError):
                failed.append(f"{name}, {folder}: {result}")
                part["tasks"][name] = {"task": name, "failed": str(result)}
                continue
            done[name], part["tasks"][name] = result, result.to_dict()
            if out is not None:
                write_result(out, "eval", {"models": found})
            elif place is not None:
                write_result(place, name, part["tasks"][name])
    pairs = list(_pairs(folders, results))
    if out is not None:
        write_result(out, "eval", {"models": found, "pairs": pairs})
    if len(found) == 1 and not tasks and list(measured) == ["loss"]:
        return json.dumps({"data": found[0]["data"], **_telling(found[0]["loss"])}, indent=1), failed
    if failed and not measured and not any(results):
        return "", failed
    width = room()
    told = (textwrap.fill(pair["sentence"], width, subsequent_indent="  ") for pair in pairs)
    return "\n".join([side_by_side(found, width), *told, *_heats(folders, results, width)]), failed


def _check(tasks: Mapping[str, ItemTask]) -> None:
    for name, task in tasks.items():
        try:
            task.check()
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out}: results need a folder, and this cannot be one ({error.strerror})") from error


def _telling(loss: Json) -> Json:
    """Leave out what was not there: null, empty, counted 0 times; a list with such places becomes place: value."""
    found: Json = {}
    for name, value in loss.items():
        if isinstance(value, list) and None in value:
            value = {str(place): one for place, one in enumerate(value) if one is not None}
        if isinstance(value, dict):
            value = _telling(value) if value.get("count", 1) else None
        if value not in (None, [], {}):
            found[name] = value
    return found


def _heats(folders: Sequence[Path], results: Sequence[dict[str, Result]], width: int) -> Iterable[str]:
    """Where answers were found, of the tasks that know."""
    for folder, done in zip(folders, results, strict=True):
        for name, result in done.items():
            if heat := result.parts.get("heat"):
                yield f"\n{name}, {folder}\n{heat_table(heat, width)}"
                if unasked := result.parts["unasked"]:
                    yield textwrap.fill(unasked, width)


def _pairs(folders: Sequence[Path], results: Sequence[dict[str, Result]]) -> Iterable[Json]:
    """Each further model against the first one, where both were asked the same; where they were not, it is said.

    Ready for JSON: difference, the model's number less the first one's, and McNemar's p; None where there is none.
    """
    for folder, other in zip(folders[1:], results[1:], strict=True):
        for name, result in other.items():
            first = results[0].get(name)
            if first is None or not (first.outcomes and result.outcomes):
                continue
            pair = {"task": name, "model": str(folder), "against": str(folders[0]), "difference": None, "p": None}
            if not pairable(first, result):
                sentence = (
                    f"{name}, {folder}: asked other items than {folders[0]}, for instance because its context or its "
                    "tokenizer is another; no difference is given, and their numbers do not compare"
                )
            else:
                difference, p = paired(first, result)
                chance = "" if p is None else f", McNemar p = {p:.2g}"
                same = result.paired_by or result.unit
                sentence = (
                    f"{name}, {folder} - {folders[0]} on the same {same}: {difference}{chance}; these models only"
                )
                pair |= {"difference": difference.to_dict(), "p": p}
            yield {**pair, "sentence": sentence}


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
    tokens: about so many, spread over the split; for outliers exactly, the first ones; None: all, and `INSIDE_TOKENS`
    for the maps. ValueError: no model folder, no usable text, too few tokens for the outliers.
    """
    model, tasks = load(folder).eval(), set(tasks)
    data = held_out(folder, model, source)
    there = data.heldout_tokens(split)
    if "outliers" in tasks and tokens is not None and tokens > there:
        raise ValueError(f"{tokens:,} tokens are needed, there are {there:,}; ask for at most so many")
    found: Json = {
        "model": str(folder),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "data": data.describe(),
    }
    progress = Progress(title=str(folder))

    def windows(name: Task, count: int | None) -> Iterable[Batch]:
        return progress.over(f"{name}, windows", data.evaluation(split, count))

    if "loss" in tasks:
        batches = together(windows("loss", tokens), batch_size)
        found["loss"] = evaluate(model, batches, data.token_bytes, data.grader).to_dict()
        del found["loss"]["documents"]
    if "maps" in tasks:
        answers = isinstance(data.config, SyntheticData)
        seen = data.evaluation(split, INSIDE_TOKENS if tokens is None else tokens)
        found["maps"] = look_inside(
            model, seen, answers=answers, told=partial(progress.tell, "maps, windows")
        ).to_dict()
        del found["maps"]["outliers"]
        found["maps"]["heldout_tokens"] = there
    if "outliers" in tasks:
        found["outliers"] = outliers(model, windows("outliers", None), tokens).to_dict()
    return found


def side_by_side(models: Sequence[Json], width: int = WIDEST) -> str:
    """Write what was found as a table: a column for each model, maps as means over layers and heads; "-": not there."""
    columns = [_numbers(found) for found in models]
    names = dict.fromkeys(name for column in columns for name in column)
    return as_text([[name, *(column.get(name, "-") for column in columns)] for name in names], width)


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
        read, there = inside["tokens"], inside["heldout_tokens"]
        cells |= {
            "tokens read for maps": f"{read:,} of {there:,}" + ("; more with --tokens" if read < there else ""),
            "share of first token": _mean(map["allocation"]["first"]["absolute"]["mean"] for map in whole),
            "negative mass": _mean(map["negative_mass"]["mean"] for map in whole),
            "effective keys": _mean(map["effective_keys"]["mean"] for map in whole),
            "λ": _mean(pair["lam"]["mean"] for pair in pairs),
            "cos(A1, A2)": _mean(pair["cosine"]["mean"] for pair in pairs),
            "R² of A2 for A1": _mean(pair["r2"]["mean"] for pair in pairs),
        }
    for name, result in found.get("tasks", {}).items():
        if "failed" in result:
            continue
        low, high = (_cell(result["measure"][end]) for end in ("low", "high"))
        cells[f"{name}: {result['metric']}"] = (
            f"{_cell(result['measure']['value'])} ({low} to {high}, n = {result['measure']['n']} {result['unit']})"
        )
        cells |= {f"{name}: {what}": _cell(value) for what, value in result["parts"].get("beside", {}).items()}
    return cells


def _mean(values: Iterable[float | None]) -> str:
    return _cell(mean_of(list(values)))


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
