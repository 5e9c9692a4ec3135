"""The numbers of one run: where it ended, how it got there, and where in the window its loss lies."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from diffattn.lab.report import beside, inside
from diffattn.lab.report.folder import Run
from diffattn.lab.report.verdicts import final_loss, tokens_to

Json = dict[str, Any]


def seed_numbers(run: Run, split: str, equal_time: float | None) -> Json:
    """What report.json holds about one seed of an arm."""
    heldout = run.heldout.get(split) or run.heldout.get("dev") or {}
    curve = [_point(row) for row in run.evals]
    peaks = [row["machine"]["peak_memory_bytes"] for row in run.train if row["machine"].get("peak_memory_bytes")]
    return {
        "status": run.status,
        "final_loss": final_loss(run, split),
        "bits_per_byte": heldout.get("bits_per_byte"),
        "accuracy": heldout.get("accuracy"),
        "tokens_to_50": tokens_to(run, 0.5),
        "tokens_to_90": tokens_to(run, 0.9),
        "seconds": curve[-1]["seconds"] if curve else None,
        "tokens_per_second": _speed(curve),
        "peak_memory_bytes": max(peaks, default=None),
        "loss_at_equal_time": _loss_at(curve, equal_time) if run.status == "finished" else None,
        "recall_hits": heldout.get("recall_hits"),
        "other_tokens": heldout.get("other_tokens"),
        "kinds": heldout.get("kinds"),
        "by_position": binned(heldout.get("by_position") or []),
        "curve": curve,
        "lambda": [{"tokens": row["tokens"], "layers": row["layers"]} for row in run.lambdas],
        "outliers": [
            {"tokens": row["tokens"], **{part: row["outliers"][part] for part in ("logits", "hidden")}}
            for row in run.evals
            if row.get("outliers")
        ],
        "inside": inside.condense(run.inside) if run.inside else None,
        "evals": {name: beside.condense(name, found) for name, found in run.results.items()},
    }


def binned(by_position: Sequence[float | None]) -> list[Json]:
    """Loss by position in ranges whose ends grow by a factor of sqrt 2, so that early positions stay apart.

    Positions count from 1; those without a scored token are left out.
    """
    count = len(by_position)
    ends = sorted({0, count, *(min(count, round(2 ** (i / 2))) for i in range(2 * count.bit_length() + 2))})
    found = []
    for low, high in pairwise(ends):
        scored = [v for v in by_position[low:high] if v is not None and math.isfinite(v)]
        if scored:
            found.append({"first": low + 1, "last": high, "loss": math.fsum(scored) / len(scored)})
    return found


def _point(row: Json) -> Json:
    kept = ("step", "tokens", "flops", "loss", "bits_per_byte", "accuracy")
    return {**{key: row.get(key) for key in kept}, "seconds": row["machine"]["seconds"]}


def _speed(curve: list[Json]) -> float | None:
    """Training tokens per second over the whole run, evaluation not counted."""
    return curve[-1]["tokens"] / curve[-1]["seconds"] if curve and curve[-1]["seconds"] else None


def _loss_at(curve: list[Json], seconds: float | None) -> float | None:
    """Loss after so many seconds, between two evaluations in proportion; None beyond the ends."""
    if seconds is None:
        return None
    for before, after in pairwise(curve):
        if before["seconds"] <= seconds <= after["seconds"]:
            share = (seconds - before["seconds"]) / (after["seconds"] - before["seconds"])
            return before["loss"] + share * (after["loss"] - before["loss"])
    return curve[-1]["loss"] if curve and curve[-1]["seconds"] <= seconds else None
