"""The report's section on kinds of questions: there where the data tell them apart, with the numbers of each seed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from diffattn.lab.report import write_report
from support.runs import Story, write_plan

GIVEN = {"right": 60, "misread": 25, "made up": 0, "abstained": 15}


def kind(name: str, given: dict[str, int], guess: float, unit: str = "", place: float | None = None) -> dict[str, Any]:
    count = sum(given.values())
    return {"name": name, "unit": unit, "place": place, "count": count, "loss": 1.0, "guess": guess, "answers": given}


def written(path: Path, kinds: list[dict[str, Any]]) -> Path:
    """The report of a recall task whose runs of seeds 0 and 1 tell these kinds apart."""
    write_plan(path, Story(tasks=("recall",)))
    for test in path.glob("recall-*-s[01]/evals/test.json"):
        test.write_text(json.dumps(json.loads(test.read_text()) | {"kinds": kinds}))
    return write_report(path)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = [kind("answerable", GIVEN, 0.05), kind("unanswerable", {**GIVEN, "right": 260}, 1.0)]
    return written(tmp_path_factory.mktemp("answers") / "small", kinds)


def test_a_panel_of_dots_and_a_panel_of_bars_for_each_kind(page: Path) -> None:
    source = page.read_text()
    assert 'id="recall-answers"' in source
    for title in ("Right: answerable", "Right: unanswerable", "Answers: answerable", "Answers: unanswerable"):
        assert f'aria-label="{title}"' in source
    bars = re.search(r'aria-label="Answers: answerable".*?</svg>', source, re.S)
    assert bars is not None
    # Four arms of two seeds, the four kinds of answers of each.
    assert bars[0].count("<rect") == 32
    assert "softmax, seed 1: misread 25.0 %" in bars[0]


def test_text_and_page_tell_how_far_guessing_reaches(page: Path) -> None:
    text = page.with_suffix(".md").read_text()
    # (0.05 * 100 + 1.0 * 300) / 400
    assert "is right in 76.2 %" in text
    assert "76.2 % of all answers" in page.read_text()
    numbers = json.loads(page.with_suffix(".json").read_text())["tasks"]["recall"]["arms"]["softmax"]["seeds"]
    best = max(point["accuracy"] for seed in numbers.values() for point in seed["curve"])
    assert f"of each arm's best seed: softmax {100 * best:.1f} %" in text
    assert ">guess</text>" in page.read_text()


def test_every_seed_and_every_answer_that_came_stands_in_the_table(page: Path) -> None:
    rows = page.with_suffix(".md").read_text().splitlines()
    assert "| answerable: right, % | 60.0, 60.0 | 60.0, 60.0 | 60.0, 60.0 | 60.0, 60.0 |" in rows
    assert "| answerable: misread, % | 25.0, 25.0 | 25.0, 25.0 | 25.0, 25.0 | 25.0, 25.0 |" in rows
    assert not any("made up" in row for row in rows)


def test_kinds_that_are_steps_of_a_quantity_are_one_curve(tmp_path: Path) -> None:
    kinds = [kind(f"{n} shots", GIVEN, 1 / n, "shots", n) for n in (1, 2, 4)]
    source = written(tmp_path / "small", kinds).read_text()
    panel = re.search(r'aria-label="Right, by shots".*?</svg>', source, re.S)
    assert panel is not None
    assert "Right: " not in source
    assert "softmax, seed 0" in panel[0] and ">guess</title>" in panel[0]


def test_where_nothing_is_told_apart_there_is_no_section(tmp_path: Path) -> None:
    page = write_report(write_plan(tmp_path / "small", Story(tasks=("recall",))))
    assert "recall-answers" not in page.read_text()
    assert "Guessing" not in page.with_suffix(".md").read_text()
