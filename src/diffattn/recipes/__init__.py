"""Plans by name: functions that return configs, which the command line changes by dotted options."""

import difflib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffattn.lab.plan import Plan

_HOMES = {
    "quick": "quick",
    "smoke": "smoke",
    "recall": "recall",
    "needle_small": "small_tasks",
    "many_shot_small": "small_tasks",
    "hallucination_small": "small_tasks",
    "unlearn": "small_tasks",
    "ab_tiny": "ab_tiny",
    "ablate_v1": "ablate_v1",
    "lambda_start": "lambda_start",
    "normalisers": "normalisers",
    "subtractions": "subtractions",
    "positions": "positions",
    "mixtures": "mixtures",
    "head_width": "head_width",
    "confounds": "confounds",
    "retrofit": "retrofit",
    "longer": "longer",
    "ab_124m": "ab_124m",
    "ab_350m": "ab_124m",
    "scale_smoke": "scaling",
    "scale_cpu": "scaling",
    "scale_paper": "scaling",
    "paper_830m": "paper",
    "paper_1p4b": "paper",
    "paper_2p8b": "paper",
    "paper_6p8b": "paper",
    "paper_13b": "paper",
}


def names() -> list[str]:
    """List the recipes, from the quickest kind to the largest."""
    return list(_HOMES)


def get(name: str) -> "Plan":
    """Give a recipe's plan; ValueError with the nearest name where there is none."""
    if name not in _HOMES:
        close = difflib.get_close_matches(name, _HOMES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"there is no recipe {name!r}{hint} (there are: {', '.join(_HOMES)})")
    return getattr(importlib.import_module(f"diffattn.recipes.{_HOMES[name]}"), name)()
