"""What `diffattn eval` found of needles, as a page: shares by depth and length, and attention where answers begin."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffattn.lab.report import write_whole
from diffattn.lab.report.heat import Heat, heat_key, heat_panel
from diffattn.lab.report.layered import MOST
from diffattn.lab.report.panels import Mark
from diffattn.lab.report.svg import short
from diffattn.lab.report.template import rendered

Json = dict[str, Any]
Found = Sequence[tuple[str, Json]]
"""Models by name, and what the task found of each."""
Cell = tuple[int, int]
"""Facts told, and asked for."""
SCORES = {
    "all": "samples with all asked numbers written, %",
    "each": "asked numbers written, %",
    "chosen": "asked numbers chosen among the context’s, %",
}
PARTS = {"answer": "the answer’s tokens", "first": "the first token", "rest": "all others"}
LEAD = """
Facts hidden in filler and asked for at the end. Depth: the share of the filler before the answers, so that at 0 they
come first of all. Length: prompt and answer together, at most.
"""
SAID = """
Per cent right, in parentheses of how many; the colour says the same. A guess writes nothing right; to choose, it is
right in {guess} %. Resting the pointer on a cell shows its interval.
"""
LOOKED = """
Shares of the row from which the answer’s first token is read, layer by layer, means over heads: {parts}.
{denominators}. A1, A2: the maps of a layer; effective: their weighted difference or sum, which reads the values.
"""


def write_needles(folder: Path) -> list[Path]:
    """Write a page for each task of a folder's eval.json that has a heat map, beside it; returns their paths."""
    models = json.loads((folder / "eval.json").read_text(encoding="utf-8"))["models"]
    tasks: dict[str, list[tuple[str, Json]]] = {}
    for name, model in zip(_names([model["model"] for model in models]), models, strict=True):
        for task, result in model["tasks"].items():
            if result.get("parts", {}).get("heat"):
                tasks.setdefault(task, []).append((name, result))
    return [write_whole(folder / f"{task}.html", _page(task, found)) for task, found in tasks.items()]


def _names(folders: Sequence[str]) -> Sequence[str]:
    """The names of runs, or of folders that are no run's model/; where two are the same, the folders as they are."""
    paths = [Path(folder) for folder in folders]
    names = [(path.parent.name if path.name == "model" else "") or path.name for path in paths]
    return names if len({*names}) == len(names) else folders


def _page(task: str, found: Found) -> str:
    results = [result for _, result in found]
    cells = dict.fromkeys((place["facts"], place["asked"]) for one in results for place in one["parts"]["heat"])
    denominators = results[0]["parts"]["attention"]["denominators"]
    settings = results[0]["settings"]
    limit = f", at most {settings['limit']} samples" if settings["limit"] else ""
    return rendered(
        "needles.html",
        task=task,
        lead=" ".join(LEAD.split()),
        header=["", *(name for name, _ in found)],
        rows=[
            [results[0]["metric"], *(_measured(one["measure"]) for one in results)],
            *(
                [words, *(short(one["parts"]["beside"][words]) for one in results)]
                for words in results[0]["parts"]["beside"]
            ),
        ],
        cells=[_cell(cell, found) for cell in cells],
        setting=f"Filler: {settings['source']}. Seed {settings['seed']}{limit}. {_unasked(found)}".strip(),
        looked=" ".join(
            LOOKED.format(
                parts=", ".join(f"{name} ({words})" for name, words in PARTS.items()),
                denominators="; ".join(f"{name}: {words}" for name, words in denominators.items()),
            ).split()
        ),
    )


def _unasked(found: Found) -> str:
    """Where no question stood, once for all models where it is the same."""
    said = {name: one["parts"]["unasked"] for name, one in found}
    if len({*said.values()}) == 1:
        return next(iter(said.values()))
    return " ".join(f"{name}: {words}" for name, words in said.items() if words)


def _measured(measure: Json) -> str:
    low, high = (_percent(measure[end]) for end in ("low", "high"))
    return f"{_percent(measure['value'])} % ({low} to {high}), n = {measure['n']}"


def _percent(share: float | None) -> str:
    return "—" if share is None else f"{100 * share:.0f}"


def _cell(cell: Cell, found: Found) -> Json:
    """What the template needs to show a cell: finished strings and pictures."""
    places = {name: [p for p in one["parts"]["heat"] if (p["facts"], p["asked"]) == cell] for name, one in found}
    guess = max(place["guess"] for some in places.values() for place in some)
    # Where one number is asked for, all of them are each of them.
    scores = [score for score in SCORES if cell[1] > 1 or score != "all"]
    heat = [_heat(name, some, score) for name, some in places.items() if some for score in scores]
    looks = [
        (name, look)
        for name, one in found
        for look in one["parts"]["attention"]["at"]
        if (look["facts"], look["asked"]) == cell
    ]
    longest = {name: max(look["length"] for other, look in looks if other == name) for name, _ in looks}
    panels = {last: [] for last in (True, False)}
    for name, look in looks:
        for sign in ("absolute", "signed"):
            panels[look["length"] == longest[name]].append(_attention(name, look, sign))
    return {
        "name": f"{cell[0]} told, {cell[1]} asked",
        "heat": [*heat, heat_key("per cent right", (0.0, 1.0), "%", [Mark("guess to choose", guess)])],
        "said": " ".join(SAID.format(guess=_percent(guess)).split()),
        "attention": panels[True] and [*panels[True], heat_key("share of the row", (-1.0, 1.0), "", [])],
        "more": panels[False],
    }


def _heat(name: str, places: Sequence[Json], score: str) -> str:
    """Depths from top to bottom, lengths from left to right."""
    depths, lengths = (sorted({place[key] for place in places}) for key in ("depth", "length"))
    at = {(place["depth"], place["length"]): place[score] for place in places}
    grid = [[at.get((depth, length)) for length in lengths] for depth in depths]
    return heat_panel(
        Heat(
            title=name,
            unit=SCORES[score],
            rows=[str(depth) for depth in depths],
            columns=[str(length) for length in lengths],
            x_name="length, tokens",
            y_name="depth, %",
            values=[[one and one["value"] for one in row] for row in grid],
            tips=[
                [
                    f"{name}, depth {depth} %, {length} tokens: {_measured(one) if one else '—'}"
                    for length, one in zip(lengths, row, strict=True)
                ]
                for depth, row in zip(depths, grid, strict=True)
            ],
            written=[[f"{_percent(one['value'])} ({one['n']})" if one else "" for one in row] for row in grid],
        )
    )


def _attention(name: str, look: Json, sign: str) -> str:
    """A row for each map and part of the keys, a column for each layer."""
    layers = [{one["name"]: one for one in layer["maps"]} | {"output": layer["output"]} for layer in look["layers"]]
    maps = dict.fromkeys(map for layer in layers for map in layer if map != "output" or sign == "absolute")
    shares = {
        f"{part}: {map}": [layer[map][part][sign] if layer.get(map) else None for layer in layers]
        for part in PARTS
        for map in maps
    }
    values = [[one and one["mean"] for one in row] for row in shares.values()]
    return heat_panel(
        Heat(
            title=f"{name}, {look['length']} tokens",
            unit=f"{sign} shares",
            rows=list(shares),
            columns=[
                str(n) if len(layers) <= 12 or n in (0, len(layers) // 2, len(layers) - 1) else ""
                for n in range(len(layers))
            ],
            x_name="layer",
            values=values,
            tips=[[f"layer {n}, {row}: {_heads(one)}" for n, one in enumerate(some)] for row, some in shares.items()],
            written=[["" if v is None else f"{v:.2f}" for v in row] for row in values] if len(layers) <= MOST else (),
        )
    )


def _heads(share: Json | None) -> str:
    if share is None or share["mean"] is None:
        return "—"
    heads = ", ".join("—" if one is None else f"{one:.3f}" for one in share["heads"])
    return f"{share['mean']:.3f} (heads {heads})"
