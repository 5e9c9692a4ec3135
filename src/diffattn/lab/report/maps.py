"""Attention maps of single heads: each branch, and the map that comes out, side by side."""

from typing import Any

from diffattn.lab.report.panels import Matrix, map_panel

Json = dict[str, Any]
LEVELS = Matrix("", (), ()).levels


def head_panels(head: Json, tokens: list[str]) -> list[str]:
    """One panel per branch, and one for the effective map where there are several branches."""
    branches = head["branches"]
    named = [(b["name"], _number(b["coefficient"]), b["map"]) for b in branches]
    panels = [map_panel(Matrix(name, values, tokens)) for name, _, values in named]
    if len(named) > 1:
        panels.append(map_panel(Matrix(_formula(named), head["effective"], tokens)))
    return panels


def _formula(named: list[tuple[str, float | None, Any]]) -> str:
    """The sum of the branches: A1 − 0.31 A2; where a coefficient differs between tokens, λ stands for it."""
    parts = []
    for name, coefficient, _ in named:
        if coefficient is None:
            parts.append(f" − λ {name}")
            continue
        sign = " − " if coefficient < 0 else " + "
        size = "" if abs(coefficient) == 1 else f"{abs(coefficient):.2f} "
        parts.append(f"{sign}{size}{name}")
    return "".join(parts).removeprefix(" + ").strip()


def _number(coefficient: Any) -> float | None:
    return float(coefficient) if isinstance(coefficient, int | float) else None
