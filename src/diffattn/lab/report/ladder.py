"""A ladder's page: what the arms need, loss against parameters and tokens, and the points behind it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffattn.lab.report import write_whole
from diffattn.lab.report.figure import style
from diffattn.lab.report.folder import read_folder
from diffattn.lab.report.panels import Line, Mark, line_panel
from diffattn.lab.report.summary import summarise
from diffattn.lab.report.template import rendered
from diffattn.lab.report.words import count, nats, rate, scaled, signed
from diffattn.lab.scaling import measure
from diffattn.lab.scaling_sentence import OTHER, percent

Json = dict[str, Any]
CAPTION = """
Logarithmic. A dot per run ({split} loss). Lines: L = E + {terms} fitted to all of them, solid where it was run and
dashed beyond, which is extrapolation. E = {floor} nats, {values}: all shared by the arms, which differ in {shifts}
alone. So short a ladder tells the shared numbers badly (many others fit nearly as well), and the distance between arms
better. Runs lie {residual} % from the curves (root mean square).
"""
TERMS = {
    "parameters": ("A (s_N N)^-α", "the term of N in the middle of the ladder {} nats, α = {}", "s_N"),
    "tokens": ("B (s_D D)^-β", "the term of D in the middle of the ladder {} nats, β = {}", "s_D"),
}
"""Of each axis that varied: its term, the numbers of it, and an arm's shift along it."""
GAP = """
Beside it the differences to {baseline}, seed by seed; the line: the fitted curves' difference at the largest budget or
size.
"""
UNBOUNDED = """
No upper bound is known of the {kinds} that {arm} needs: the curves of some seeds, or of all, reach the loss of
{baseline} with no number of them.
"""


def write_scaling(folder: Path) -> Path:
    """Write scaling.json, scaling.md and scaling.html beside a plan's report; returns the path of the page.

    ValueError: the folder holds no plan, or its tasks are no ladder.
    """
    folder = Path(folder)
    found = measure(summarise(read_folder(folder)))
    write_whole(folder / "scaling.json", json.dumps(found, allow_nan=False, ensure_ascii=False, indent=1) + "\n")
    write_whole(folder / "scaling.md", _text(found))
    return write_whole(folder / "scaling.html", _page(found))


def _page(found: Json) -> str:
    return rendered(
        "ladder.html",
        found=found,
        sentences=_sentences(found),
        panels=list(_panels(found)),
        caption=_caption(found),
        tables=list(_tables(found)),
        needs=_needs(found),
        missing=_missing(found),
    )


def _text(found: Json) -> str:
    plan = found["plan"]
    parts = [f"# {plan['name']}", *(plan[key] or "" for key in ("question", "description", "limits"))]
    parts += [f"- {words}" for words in _sentences(found)] or [_missing(found)]
    parts += [" ".join(_caption(found).split())] if found["fit"] else []
    for header, rows in _tables(found):
        lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    parts += [_needs(found), f"    {plan['command']}"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sentences(found: Json) -> list[str]:
    """What is said of every arm that is not the baseline."""
    failed = [
        f"{arm}: UNSTABLE, {runs} of its runs failed, so that no curve is drawn for it"
        + (" nor for any other arm, as all are measured by it." if arm == found["baseline"] else ".")
        for arm, runs in found["unstable"].items()
    ]
    return [finding["sentence"] for finding in found["findings"].values()] + failed


def _missing(found: Json) -> str:
    runs = found["runs"]
    return f"No curve yet: no seed is finished at every point ({runs['ended']} of {runs['planned']} runs ended)."


def _caption(found: Json) -> str:
    fit = found["fit"]
    if not fit:
        return ""
    numbers = {"parameters": (fit["size_term"], fit["alpha"]), "tokens": (fit["tokens_term"], fit["beta"])}
    there = [(*TERMS[key], [nats(number, 2) for number in numbers[key]]) for key in found["varied"]]
    drawn = CAPTION.format(
        split=found["split"],
        terms=" + ".join(term for term, _, _, _ in there),
        floor=nats(fit["floor"], 2),
        values=", ".join(words.format(*values) for _, words, _, values in there),
        shifts=" and ".join(shift for _, _, shift, _ in there),
        residual=nats(100 * fit["residual_sd"], 2),
    )
    return drawn + GAP.format(baseline=found["baseline"]) + "".join(_unbounded(found))


def _unbounded(found: Json) -> Iterator[str]:
    for arm, finding in found["findings"].items():
        kinds = [key for key in found["varied"] if finding["shares"] and finding["shares"][key]["unbounded"]]
        if kinds:
            yield UNBOUNDED.format(kinds=" and of the ".join(kinds), arm=arm, baseline=found["baseline"])


def _panels(found: Json) -> list[str]:
    """Loss along sizes, along budgets, and the differences to the baseline along sizes; axes that vary, that is."""
    panels = []
    for along, name in (("parameters", "non-embedding parameters"), ("tokens", "training tokens")):
        if len({point[along] for point in found["points"]}) > 1:
            lines = [*_curves(found, along), *_dots(found, along)]
            if lines:
                title, unit = f"Loss against {along}", f"nats per token ({found['split']})"
                panels.append(line_panel(title, name, unit, lines, log=True, log_y=True))
                gaps = [*_gap_curves(found, along), *_gap_dots(found, along)]
                if gaps:
                    title = f"Difference to {found['baseline']}"
                    panels.append(line_panel(title, name, unit, gaps, log=True, across=[Mark("", 0.0)]))
    return panels


def _curves(found: Json, along: str) -> Iterator[Line]:
    last = max((curve["rank"] for curve in found["curves"] if curve["along"] == along), default=0)
    for curve in found["curves"]:
        if curve["along"] == along:
            arm, points, (low, high) = curve["arm"], curve["points"], curve["run"]
            name, tip = arm if curve["rank"] == last else "", f"{arm}, fitted"
            yield from _pieces(name, style(found["arms"].index(arm)), points, low, high, tip)


def _pieces(name: str, colour: str, points: list[Any], low: float, high: float, tip: str) -> Iterator[Line]:
    """A curve solid between low and high, dashed beyond; its name stands at the end of the dashes."""
    beyond = f"{colour} extrapolated"
    yield Line("", beyond, [p for p in points if p[0] <= low * 1.001], f"{tip}, extrapolated")
    yield Line("", colour, [p for p in points if low * 0.999 <= p[0] <= high * 1.001], tip)
    yield Line(name, beyond, [p for p in points if p[0] >= high * 0.999], f"{tip}, extrapolated")


def _dots(found: Json, along: str) -> Iterator[Line]:
    for point in found["points"]:
        for number, arm in enumerate(found["arms"]):
            for seed, loss in point["losses"][arm].items():
                if loss is not None:
                    tip = f"{arm}, {point['task']}, seed {seed}: {nats(loss, 4)}"
                    yield Line("", style(number), [(point[along], loss)], tip, marker=number)


def _gap_curves(found: Json, along: str) -> Iterator[Line]:
    curves = [curve for curve in found["curves"] if curve["along"] == along]
    last = max((curve["rank"] for curve in curves), default=0)
    drawn = {curve["arm"]: curve for curve in curves if curve["rank"] == last}
    if not drawn:
        return
    base = drawn[found["baseline"]]
    low, high = base["run"]
    for arm in found["findings"]:
        points = [(x, y - z) for (x, y), (_, z) in zip(drawn[arm]["points"], base["points"], strict=True)]
        yield from _pieces(arm, style(found["arms"].index(arm)), points, low, high, f"{arm}, fitted")


def _gap_dots(found: Json, along: str) -> Iterator[Line]:
    for point in found["points"]:
        base = point["losses"][found["baseline"]]
        for number, arm in list(enumerate(found["arms"]))[1:]:
            for seed, loss in point["losses"][arm].items():
                if loss is not None and base.get(seed) is not None:
                    gap = loss - base[seed]
                    tip = f"{arm}, {point['task']}, seed {seed}: {signed(gap, 4)}"
                    yield Line("", style(number), [(point[along], gap)], tip, marker=number)


def _needs(found: Json) -> str:
    """What the columns of needs hold."""
    said = "Parameters without embeddings, of the baseline."
    if not found["findings"]:
        return said
    of = ", ".join(f"of its {key} at equal {OTHER[key]}" for key in found["varied"])
    spread = "95 % intervals over seeds" if len(found["seeds"]) > 1 else "one seed, so no intervals"
    return f"{said} Needs: what has the baseline's loss by the fitted curves, {of}; {spread}."


def _tables(found: Json) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Header and a row per point: rates and losses; what each arm needs of the baseline's parameters and tokens."""
    arms, points = found["arms"], found["points"]
    trained = [
        [point["task"], count(point["parameters"]), scaled(point["tokens"])]
        + [cell for arm in arms for cell in (rate(point["learning_rates"][arm]), _losses(point["losses"][arm]))]
        for point in points
    ]
    columns = [f"{arm}: {what}" for arm in arms for what in ("rate", "loss by seed")]
    yield ["Point", "Parameters", "Tokens", *columns], trained
    if needs := [(arm, kind) for arm in found["findings"] for kind in found["varied"]]:
        shares = found["findings"]
        needed = [
            [point["task"]] + [_cell(shares[arm]["by_point"].get(point["task"], {}).get(kind)) for arm, kind in needs]
            for point in points
        ]
        yield ["Point", *(f"{arm} needs of {kind}" for arm, kind in needs)], needed


def _losses(by_seed: Json) -> str:
    return " · ".join(map(nats, by_seed.values()))


def _cell(share: Json | None) -> str:
    return "—" if share is None else percent(share) + ("" if share["seen"] else ", extrapolated")
