"""Scales, ticks and labels of the hand-written pictures."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffattn.lab.report.panels import Dot, Line, Matrix, Row, dot_panel, line_panel, map_panel, shown
from diffattn.lab.report.svg import Scale, element, labels, short, spread


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.booleans())
def test_ticks_lie_inside_the_range_and_grow(low: float, width: float, log: bool) -> None:
    low = abs(low) + 1e-3 if log else low
    ticks = Scale(low, low + width, 0, 300, log).ticks()
    slack = 1e-6 * width + 1e-9 * abs(low)
    assert all(low - slack <= tick <= low + width + slack for tick in ticks)
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 24


@given(st.lists(st.floats(0, 200), max_size=12))
def test_labels_never_overlap_and_keep_their_order(wanted: list[float]) -> None:
    placed = spread(wanted, 12, 0, 200)
    assert len(placed) == len(wanted)
    ranked = sorted(placed)
    assert all(b - a >= 12 - 1e-9 for a, b in pairwise(ranked))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    assert [placed[i] for i in order] == ranked


def test_a_scale_maps_its_ends_to_its_pixels() -> None:
    for log in (False, True):
        scale = Scale(2, 32, 40, 340, log)
        assert (scale(2), scale(32)) == (40, 340)
    assert Scale(1, 100, 0, 10, log=True)(10) == pytest.approx(5)


@pytest.mark.parametrize(
    ("value", "words"),
    [(716800, "717k"), (2.1e12, "2.1T"), (0.005, "0.005"), (-0.25, "−0.25"), (0, "0"), (999.9, "1k")],
)
def test_axis_numbers_are_short(value: float, words: str) -> None:
    assert short(value) == words


def test_ticks_are_written_as_exactly_as_their_step() -> None:
    assert labels(Scale(1.42, 1.5, 0, 100).ticks(4)) == ["1.42", "1.44", "1.46", "1.48", "1.5"]
    assert labels(Scale(1.42, 1.51, 0, 100).ticks(4)) == ["1.425", "1.45", "1.475", "1.5"]


def test_attributes_and_labels_are_escaped() -> None:
    assert element("g", class_='"><script>') == '<g class="&quot;&gt;&lt;script&gt;"></g>'
    picture = line_panel("<b>", "x", "y", [Line("<i>", "arm0", [(0, 1), (1, 2)], "<u>")])
    assert "<b>" not in picture and "<i>" not in picture and "<u>" not in picture


@pytest.mark.parametrize("points", [[(1.0, 2.0)], [(1.0, 2.0), (2.0, 2.0)], [(0.0, 0.0), (1.0, 0.0)]])
def test_flat_and_single_curves_can_be_drawn(points: list[tuple[float, float]]) -> None:
    picture = line_panel("t", "x", "y", [Line("a", "arm0", points, "a", 0)])
    assert "nan" not in picture and "polyline" in picture


def test_events_that_never_came_have_their_own_place() -> None:
    rows = [Row("a", "arm0", 0, [Dot(None, "a: never"), Dot(None, "b: never")])]
    picture = dot_panel("t", "tokens", rows, within=(0, 4096))
    assert picture.count("hollow") == 2 and ">never</text>" in picture


def test_white_space_in_tokens_becomes_visible() -> None:
    assert [shown(t) for t in (" def", "\n", "\t", "a_rather_long_token")] == ["·def", "⏎", "⇥", "a_rathe…"]


def test_a_map_draws_neighbours_of_one_colour_in_one_piece() -> None:
    values = [[0.3, 0.25, 0.0], [-0.3, 0.3, 0.01], [0.3, 0.5, 0.5]]
    drawn = map_panel(Matrix("A", values, ["a", "b", "c"]))
    paths = dict(re.findall(r'<path d="([^"]*)" class="cell (\w+)">', drawn))
    assert {shade: path for path, shade in paths.items()} == {
        "plus4": "M0 0h2v1h-2zM1 1h1v1h-1zM0 2h1v1h-1z",
        "minus4": "M0 1h1v1h-1z",
        "plus5": "M1 2h2v1h-2z",
    }
