"""The losses that a verdict is made of: one number per arm, seed and budget, from a plan's runs or from a CSV."""

import csv
import difflib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diffattn import stats

Runs = dict[str, dict[int, float]]
"""Arm -> seed -> final value. A loss that is not finite is a failed run; of a tokens metric, inf means "never"."""

COLUMNS = ("arm", "seed", "budget", "loss")
BUDGETS = ("full", "quarter", "ruler")
BASELINE_NAMES = ("softmax", "baseline", "transformer")
FAILED_BEYOND = 10
"""Pooled standard deviations above the baseline's median from which a run counts as failed."""


LARGEST = 1e100
"""No loss of a training is larger, and the square of a larger one overflows."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Final values of the primary metric, per budget of tokens."""

    full: Runs
    """Every arm at the full budget; the baseline is one of them."""
    quarter: Runs = field(default_factory=dict)
    """The same arms at a quarter of the tokens, each with a full schedule of its own; may be empty."""
    ruler: dict[int, float] = field(default_factory=dict)
    """Seed -> value of the baseline given 1.25 x tokens; empty when the plan has no ruler."""


@dataclass(frozen=True)
class _Row:
    line: int
    arm: str
    seed: int
    budget: str
    loss: float


def read_losses(path: Path, baseline: str | None = None) -> tuple[Losses, str, str]:
    """Losses, the baseline's name and how it was chosen, from a CSV with the columns arm, seed, budget and loss.

    budget is full, quarter or ruler (the baseline given 1.25 x tokens), full without that column; a loss of nan or inf
    is a failed run. Every arm needs the baseline's seeds. Raises ValueError naming the line and, for a misspelt name,
    the nearest one.
    """
    rows = _parse(path)
    arms = list(dict.fromkeys(row.arm for row in rows if row.budget == "full"))
    if not arms:
        raise ValueError(f"{path}: no row has budget 'full'; the verdict is about the full budget")
    baseline, chosen = _choose_baseline(path, arms, baseline)
    for row in rows:
        if row.arm not in arms:
            raise ValueError(f"{path}, line {row.line}: arm '{row.arm}' has no full budget{_nearest(row.arm, arms)}")
        if row.budget == "ruler" and row.arm != baseline:
            raise ValueError(
                f"{path}, line {row.line}: the ruler is the baseline ({baseline}) with 1.25 x tokens, not '{row.arm}'"
            )
    _check_pairs(path, rows, baseline)
    full = {arm: {r.seed: r.loss for r in rows if r.arm == arm and r.budget == "full"} for arm in arms}
    quarter = {arm: {r.seed: r.loss for r in rows if r.arm == arm and r.budget == "quarter"} for arm in arms}
    ruler = {r.seed: r.loss for r in rows if r.budget == "ruler"}
    return Losses(full=full, quarter={a: q for a, q in quarter.items() if q}, ruler=ruler), baseline, chosen


def _parse(path: Path) -> list[_Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text; save the losses as a CSV in UTF-8") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    if "\0" in text:
        raise ValueError(f"{path}: not a text file; save the losses as a CSV in UTF-8")
    records = _records(path, text)
    header = [name.strip().lower() for name in next(records, (0, []))[1]]
    if not header:
        raise ValueError(f"{path}: empty; expected a CSV with the columns {', '.join(COLUMNS)}")
    for column in COLUMNS:
        if column == "budget" and column not in header and not _nearest(column, header):
            continue
        if header.count(column) != 1:
            separated = " (the separator must be a comma)" if len(header) == 1 and len(header[0]) > 8 else ""
            raise ValueError(
                f"{path}, line 1: needs one column '{column}', found {', '.join(header)}{separated}"
                f"{_nearest(column, header, 'rename the column')}"
            )
    rows: dict[tuple[str, int, str], _Row] = {}
    for line, cells in records:
        if not any(cell.strip() for cell in cells):
            continue
        row = _parse_row(f"{path}, line {line}", line, header, cells)
        key = (row.arm, row.seed, row.budget)
        if key in rows:
            raise ValueError(
                f"{path}, line {row.line}: arm '{row.arm}', seed {row.seed}, budget {row.budget} "
                f"was already given in line {rows[key].line}; one run is one row"
            )
        rows[key] = row
    if not rows:
        raise ValueError(f"{path}: has a header but no rows")
    return list(rows.values())


def _records(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """The line where each record ends, and its cells."""
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    while True:
        try:
            cells = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {lines.line_num}: not a row of a CSV ({error}); expected {', '.join(COLUMNS)}"
            ) from error
        yield lines.line_num, cells


def _parse_row(where: str, line: int, header: list[str], cells: list[str]) -> _Row:
    if len(cells) != len(header):
        raise ValueError(f"{where}: {len(cells)} cells under {len(header)} columns")
    cell = {name: value.strip() for name, value in zip(header, cells, strict=True)}
    if not cell["arm"]:
        raise ValueError(f"{where}: the arm has no name")
    try:
        seed = int(cell["seed"])
    except ValueError:
        raise ValueError(f"{where}: the seed must be a whole number, got '{cell['seed']}'") from None
    budget = cell.get("budget", "full").lower()
    if budget not in BUDGETS:
        raise ValueError(f"{where}: the budget must be {', '.join(BUDGETS)}, got '{budget}'{_nearest(budget, BUDGETS)}")
    try:
        loss = float(cell["loss"])
    except ValueError:
        raise ValueError(f"{where}: the loss must be a number, got '{cell['loss']}'; a failed run is nan") from None
    if math.isfinite(loss) and abs(loss) > LARGEST:
        raise ValueError(f"{where}: {loss:g} is no plausible loss; a failed run is nan")
    return _Row(line, cell["arm"], seed, budget, loss)


def _choose_baseline(path: Path, arms: list[str], baseline: str | None) -> tuple[str, str]:
    if len(arms) < 2:
        raise ValueError(f"{path}: only one arm, '{arms[0]}'; a comparison needs a baseline and another arm")
    if baseline is not None:
        if baseline not in arms:
            raise ValueError(
                f"{path}: no arm is called '{baseline}'{_nearest(baseline, arms)}; arms: {', '.join(arms)}"
            )
        return baseline, "as asked"
    for name in BASELINE_NAMES:
        for arm in arms:
            if arm.lower() == name:
                return arm, "by its name; --baseline names another"
    return arms[0], "the first arm of the file; --baseline names another"


def _check_pairs(path: Path, rows: list[_Row], baseline: str) -> None:
    """Every run needs the baseline's run of its seed and budget and the other way round; every seed a full budget."""
    lines = {(row.arm, row.seed, row.budget): row.line for row in rows}
    for row in rows:
        if (row.arm, row.seed, "full") not in lines:
            raise ValueError(f"{path}, line {row.line}: arm '{row.arm}' has no full budget of seed {row.seed}")
        if row.budget == "ruler":
            continue
        if (baseline, row.seed, row.budget) not in lines:
            raise ValueError(
                f"{path}, line {row.line}: seed {row.seed} of '{row.arm}' has no pair: the baseline '{baseline}' "
                f"lacks that seed at budget {row.budget}. A failed run is a row with loss nan, not a missing row"
            )
        for arm in {other.arm for other in rows if other.budget == row.budget}:
            if (arm, row.seed, row.budget) not in lines:
                raise ValueError(
                    f"{path}, line {row.line}: '{row.arm}' has seed {row.seed} at budget {row.budget}, but '{arm}' has "
                    f"no such row. A failed run is a row with loss nan, not a missing row"
                )


def _nearest(name: str, names: tuple[str, ...] | list[str], advice: str = "did you mean") -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; {advice} '{close[0]}'?" if close else ""


def failed_runs(full: Runs, baseline: str, lower_is_better: bool = True) -> dict[str, list[int]]:
    """Seeds of each arm that failed: not finite, or worse than the baseline's median by more than 10 pooled sd.

    The pooled sd is that of the arms without a failed run, found by repetition from a robust start, so that failures do
    not hide behind the spread they cause. An arm whose runs are all finite and stand within 10 pooled sd of each other
    has not failed, however bad it is: it is plainly worse, and the loss may say so.
    """
    sign = 1 if lower_is_better else -1
    values = {arm: {seed: sign * x for seed, x in runs.items()} for arm, runs in full.items()}
    infinite = {arm: [s for s, x in runs.items() if not math.isfinite(x)] for arm, runs in values.items()}
    level = [x for x in values[baseline].values() if math.isfinite(x)]
    scale = _robust_sd(values)
    if not level or not scale > 0:
        return infinite
    failed = infinite
    for _ in range(10):
        before, failed = failed, {}
        for arm, runs in values.items():
            finite = [x for x in runs.values() if math.isfinite(x)]
            together = len(finite) == len(runs) and max(finite) - min(finite) <= FAILED_BEYOND * scale
            limit = math.inf if together else float(np.median(level)) + FAILED_BEYOND * scale
            failed[arm] = [s for s, x in runs.items() if not math.isfinite(x) or x > limit]
        pooled, df = stats.pooled_sd([list(runs.values()) for arm, runs in values.items() if not failed[arm]])
        if failed == before or df == 0 or pooled == 0:
            break
        scale = pooled
    return failed


def _robust_sd(values: Runs) -> float:
    """Median distance between two runs of one arm, as a standard deviation; that of all runs if half the pairs tie."""
    finite = [np.array([x for x in runs.values() if math.isfinite(x)]) for runs in values.values()]
    distances = [np.abs(x[:, None] - x)[np.triu_indices(len(x), 1)] for x in finite if len(x) > 1]
    if not distances:
        return 0.0
    median = float(np.median(np.concatenate(distances)))
    # |x - y| of two normal draws has the median 0.6745 sqrt(2) sd.
    return median / (0.6745 * math.sqrt(2)) if median > 0 else stats.pooled_sd([x for x in finite if len(x)])[0]
