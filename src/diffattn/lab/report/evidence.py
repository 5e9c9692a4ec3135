"""How much the verdicts of a task rest on: intervals, power after the fact, the ruler and the noise."""

from collections.abc import Callable
from typing import Any

from diffattn.lab.report.tables import Column, Table, styles
from diffattn.lab.report.words import count, nats, signed

Json = dict[str, Any]


def evidence_table(task: Json) -> Table | None:
    """One row per judged arm; None where no difference in loss was judged."""
    found = [f for f in task["findings"] if f["numbers"].get("detectable_difference") is not None]
    if not found:
        return None
    numbers = styles(task)
    columns = [
        _column("Difference", "nats per token", found, lambda f: signed(f["mean"])),
        _column("Interval", "low to high", found, lambda f: f"{signed(f['low'])} to {signed(f['high'])}"),
        _column("Worth", "% of tokens", found, lambda f: signed(f["worth_percent_of_tokens"], 0)),
        _column("Could see", "nats, 80 % power", found, lambda f: nats(f["numbers"]["detectable_difference"])),
        _column("Margin", "nats", found, lambda f: nats(f["numbers"]["margin"], 4)),
        _column("Needed", "seeds for the margin", found, lambda f: count(f["numbers"]["seeds_for_margin"])),
        _column("Correlation", "over seeds", found, lambda f: signed(f["numbers"]["correlation_over_seeds"], 2)),
        _column("Sign-flip p", "decides nothing", found, lambda f: nats(f["numbers"]["sign_flip_p"])),
    ]
    rows = [(f["arm"], f"{f['verdict']}, {f['n']} seeds", numbers[f["arm"]]) for f in found]
    return Table(rows, [(f"Against {task['baseline']}", columns)])


def evidence_words(task: Json) -> str:
    """The ruler, the noise floor, or the seeds that ranks need, in a sentence each, as far as they are known."""
    said = []
    deciding = _first(task, "seeds_to_decide")
    if deciding:
        seeds = min(found["n"] for found in task["findings"])
        said.append(
            f"Judged by tokens to 50 % with a test on ranks: {deciding} seeds can decide; there are {seeds} here."
        )
    ruler = _first(task, "ruler")
    if ruler:
        seen = "so the setting saw them" if ruler["seen"] else "so the setting did not see them"
        low, high = signed(ruler["low"]), signed(ruler["high"])
        said.append(f"Ruler: 25 % more tokens are worth {signed(ruler['gain'])} nats ({low} to {high}), {seen}.")
    noise = _first(task, "noise_floor")
    if noise:
        ends = f"{nats(noise['low'], 4)} to {nats(noise['high'], 4)}"
        said.append(
            f"Noise: seeds of one arm differ with a standard deviation of {nats(noise['sd'], 4)} nats "
            f"({ends}, {noise['df']} degrees of freedom), a description and no threshold."
        )
    return " ".join(said)


def _first(task: Json, key: str) -> Any:
    return next((value for found in task["findings"] if (value := found["numbers"].get(key))), None)


def _column(name: str, unit: str, found: list[Json], cell: Callable[[Json], str]) -> Column:
    return Column(name, unit, [cell(f) for f in found])
