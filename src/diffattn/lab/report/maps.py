"""Attention maps of single heads: each branch, and the map that comes out, side by side."""

from typing import Any

from diffattn.lab.report.panels import Matrix, map_panel

Json = dict[str, Any]
LEVELS = Matrix("", (), ()).levels


def head_panels(head: Json, tokens: list[str]) -> list[str]:
    """One panel per branch, and one for the effective map where there are several branches."""
    where = f"layer {head['layer']}, head {head['head']}"
    named = [(b["name"], b["coefficient"], b["map"]) for b in head["branches"]]
    panels = [map_panel(Matrix(f"{name}, {where}", values, tokens)) for name, _, values in named]
    if len(named) > 1:
        panels.append(map_panel(Matrix(f"{_formula(named)}, {where}", head["effective"], tokens)))
    return panels


def _formula(named: list[tuple[str, float, Any]]) -> str:
    """The sum of the branches in words: A1 − 0.31 A2."""
    parts = []
    for name, coefficient, _ in named:
        sign = " − " if coefficient < 0 else " + "
        size = "" if abs(coefficient) == 1 else f"{abs(coefficient):.2f} "
        parts.append(f"{sign}{size}{name}")
    return "".join(parts).removeprefix(" + ").strip()
