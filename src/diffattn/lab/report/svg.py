"""SVG by hand: elements, scales, ticks, numbers.  Colours and fonts are the style sheet's, and follow the theme."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

COLOURS = 8
"""Arms beyond this many share colours; their direct labels still tell them apart."""


def element(tag: str, *children: str, **attributes: object) -> str:
    """One element; children are finished SVG, values are escaped; `class_` gives class, `text_anchor` text-anchor."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(_plain(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{given}>{''.join(children)}</{tag}>"


def text(x: float, y: float, words: str, class_: str = "", **attributes: object) -> str:
    """Escaped text."""
    return element("text", html.escape(words), x=x, y=y, class_=class_ or None, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def tip(words: str) -> str:
    """What a pointer resting on the element reads."""
    return element("title", html.escape(words))


def polyline(points: Sequence[tuple[float, float]], class_: str) -> str:
    return element("polyline", points=" ".join(f"{_plain(x)},{_plain(y)}" for x, y in points), class_=class_)


def marker(x: float, y: float, style: int, words: str, *, hollow: bool = False, size: float = 4) -> str:
    """A dot whose shape, like its colour, belongs to the arm: it survives black-and-white printing."""
    s, shape = size, style % 4
    if shape == 0:
        path = f"M{-s} 0a{s} {s} 0 1 0 {2 * s} 0a{s} {s} 0 1 0 {-2 * s} 0z"
    elif shape == 1:
        path = f"M{-0.9 * s:g} {-0.9 * s:g}h{1.8 * s:g}v{1.8 * s:g}h{-1.8 * s:g}z"
    elif shape == 2:
        path = f"M0 {-1.15 * s:g}L{1.15 * s:g} {0.85 * s:g}H{-1.15 * s:g}z"
    else:
        path = f"M0 {-1.3 * s:g}L{1.3 * s:g} 0L0 {1.3 * s:g}L{-1.3 * s:g} 0z"
    place = f"translate({_plain(x)} {_plain(y)})"
    return element("path", tip(words), d=path, transform=place, class_="dot hollow" if hollow else "dot")


@dataclass(frozen=True)
class Scale:
    """Data from low to high drawn from pixel start to pixel end, linearly or in logarithms."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (
            (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self, about: int = 4) -> list[float]:
        """Round values inside the range."""
        if self.log and self.high > 4 * self.low:
            return _log_ticks(self.low, self.high, about)
        raw = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [round(i * step, 12) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def shortened(name: str, letters: int) -> str:
    """The name, cut with an ellipsis where it has more letters."""
    return name if len(name) <= letters else name[: letters - 1] + "…"


def padded(values: Sequence[float], share: float = 0.06, *, log: bool = False) -> tuple[float, float]:
    """The range of the values with some air around it; a single value gets a range of its own."""
    low, high = min(values), max(values)
    if log:
        air = (high / low) ** share if high > low else 1.5
        return low / air, high * air
    air = (high - low) * share or abs(high) * 0.05 or 1.0
    return low - air, high + air


def labels(ticks: Sequence[float]) -> list[str]:
    """Ticks as `short` numbers, with as many figures as their step needs: 1.425, 1.45, 1.475."""
    figures = next((n for n in range(3, 7) if all(float(f"{v:.{n}g}") == v for v in ticks)), 6)
    return [short(value, figures) for value in ticks]


def short(value: float, figures: int = 3) -> str:
    """A number for an axis or a narrow cell, with three figures about five characters: 0.005, 1.75, 717k, 2.1T."""
    size = abs(value)
    for power, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= 0.9995 * power:
            return f"{value / power:.{figures}g}{letter}".replace("-", "−")
    return f"{value:.{figures}g}".replace("-", "−")


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, at least `gap` apart and, where there is room, between low and high."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [min(max(wanted[i], low), high) for i in order]
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + gap)
    if placed and placed[-1] > high:
        placed[-1] = high
        for i in range(len(placed) - 2, -1, -1):
            placed[i] = min(placed[i], placed[i + 1] - gap)
    return [place for _, place in sorted(zip(order, placed, strict=True))]


def _log_ticks(low: float, high: float, about: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        found = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(found) >= min(about, 3):
            return [float(f"{v:.6g}") for v in found]
    return [low, high]


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
