"""One figure of the page: its panels, its caption, and the setting that every caption ends with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diffattn.lab.report.svg import COLOURS

Json = dict[str, Any]
AT_ONCE = 6
"""Panels of a figure that are shown without a click."""


@dataclass(frozen=True)
class Figure:
    """Panels that stand side by side where there is room, and below each other on a phone."""

    name: str
    """Anchor on the page."""
    title: str
    panels: list[str]
    caption: str
    setting: str
    missing: str = ""
    """Said in place of the panels when there are none."""
    exploratory: bool = False
    """Describes the trained models; no verdict rests on it."""
    more: Sequence[str] = ()
    """Panels behind a click."""
    more_name: str = ""
    legend: str = ""
    """The value at which the colour of the panels' cells is full."""
    key: Sequence[tuple[str, str]] = ()
    """Colours of the panels, and what they mean."""


def figure(
    task: Json,
    name: str,
    title: str,
    panels: list[str],
    caption: str,
    missing: str = "",
    *,
    more: tuple[str, list[str]] = ("", []),
    legend: str = "",
    key: Sequence[tuple[str, str]] = (),
    exploratory: bool = False,
    seeds: Sequence[str] = (),
) -> Figure:
    """A figure whose setting is the task's; what is more than a screen of panels goes behind a click.

    seeds: those that it shows, if not all.
    """
    setting = setting_words(task, seeds)
    nothing = (
        "This task has nothing to draw here." if task["ended"] else "Nothing to draw yet: no run has come this far."
    )
    said = " ".join(caption.split())
    hidden = panels[AT_ONCE:] + more[1]
    more_name = f"More panels: {more[0]}"
    shown = panels[:AT_ONCE]
    return Figure(name, title, shown, said, setting, missing or nothing, exploratory, hidden, more_name, legend, key)


def setting_words(task: Json, seeds: Sequence[str] = ()) -> str:
    """Data set, model, seeds and machine, as they end a caption."""
    shown = [str(seed) for seed in seeds or task["seeds"]]
    machine = f" Trained on {task['hardware']}." if task["hardware"] else ""
    named = f"Seed{'s' if len(shown) > 1 else ''} {', '.join(shown)}"
    return f"Data: {task['data']}. Model: {task['model']}. {named}.{machine}"


def style(number: int) -> str:
    """Class of an arm's colour."""
    return f"arm{number % COLOURS}"
