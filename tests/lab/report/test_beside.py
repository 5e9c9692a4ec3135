"""Tasks beside the loss in the report: every seed, the paired difference over seeds, and never a verdict."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from diffattn import stats
from diffattn.lab.report import write_report
from support.runs import ARMS, Story, write_plan

NAMES = ["needle", "many_shot", "long_context", "quantise", "shift"]


def measure(value: float) -> dict[str, Any]:
    return {"value": value, "low": None, "high": value + 0.1, "n": 40, "interval": "Wilson"}


def places(value: float) -> list[dict[str, Any]]:
    at = [(length, depth) for length in (128, 256) for depth in (0, 50, 100)]
    scores = {"each": measure(value), "chosen": measure(value / 2)}
    return [{"facts": 4, "asked": 2, "length": length, "depth": depth, **scores} for length, depth in at]


def parts(name: str, value: float) -> dict[str, Any]:
    """What the tasks leave, as far as the report draws it."""
    chosen = {"4 told, 2 asked": {"chosen": {"log_loss": measure(1 - value)}}}
    levels = [{"shots": n, "accuracy": measure(value), "log_loss": measure(2 - value)} for n in (0, 1, 2, 4)]
    readings = [(64, "none"), (256, "none"), (512, "none"), (512, "yarn")]
    up_to = [{"position": position, "loss": measure(value)} for position in (64, 256, 512)]
    rounded = [("logits", 8, "head"), ("logits", 4, "head"), ("weights", 8, None)]
    return {
        "needle": {"heat": places(value), "cells": chosen},
        "many_shot": {"shots": levels, "chance": {"accuracy": 0.25, "log_loss": 1.386}},
        "long_context": {
            "lengths": [{"length": length, "scaling": how, "gain": measure(value)} for length, how in readings],
            "cumulative": [{"scaling": how, "positions": up_to} for how in ("none", "yarn")],
        },
        "quantise": {"rounded": [{"what": w, "bits": b, "per": p, "change": measure(value)} for w, b, p in rounded]},
        "shift": {},
    }[name]


def value_of(arm: str, seed: int) -> float:
    return 0.2 + 0.1 * list(ARMS).index(arm) + 0.03 * seed * (arm != "softmax")


def written(path: Path, names: list[str], story: Story | None = None, **changes: dict[str, Any]) -> Path:
    """The report of a text plan whose finished runs were put to tasks; changes: of results, by "arm_seed"."""
    write_plan(path, story or Story(tasks=("text",)))
    plan = json.loads((path / "plan.json").read_text())
    plan["tasks"][0]["evals"] = names
    (path / "plan.json").write_text(json.dumps(plan))
    for arm in ARMS:
        for folder in path.glob(f"text-{arm}-lr*"):
            seed, value = int(folder.name[-1]), value_of(arm, int(folder.name[-1]))
            for name in names if (folder / "evals").exists() else ():
                result = {"task": name, "metric": f"metric of {name}", "measure": measure(value)}
                result |= {"settings": {"source": "stdlib", "seed": seed, "bits": [8, 4]}, "parts": parts(name, value)}
                result |= changes.get(f"{arm}_{seed}", {})
                (folder / "evals" / f"{name}.json").write_text(json.dumps(result))
    return write_report(path)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("beside") / "quick", NAMES)


def found(page: Path, name: str, key: str = "value") -> dict[str, Any]:
    numbers = json.loads(page.with_suffix(".json").read_text())["tasks"]["text"]["evals"][name]
    return next(quantity for quantity in numbers["quantities"] if quantity["key"] == key)["arms"]


def drawn(page: Path, title: str) -> str:
    panel = re.search(rf'aria-label="{title}".*?(?=aria-label|</section>)', page.read_text(), re.S)
    assert panel is not None, title
    return panel[0]


def test_differences_are_paired_by_seed_with_the_interval_over_seeds(page: Path) -> None:
    diff = found(page, "shift")["diff_v1"]
    apart = [value_of("diff_v1", seed) - value_of("softmax", seed) for seed in (0, 1, 2)]
    assert list(diff["differences"].values()) == pytest.approx(apart)
    mean, half = stats.paired_interval(apart, 0.05)
    assert [diff["interval"][end] for end in ("mean", "low", "high")] == pytest.approx([mean, mean - half, mean + half])
    assert diff["interval"]["n"] == 3
    assert found(page, "shift")["softmax"]["differences"] == {}


def test_every_task_has_a_section_marked_exploratory_with_metric_and_settings(page: Path) -> None:
    source = page.read_text()
    for name in NAMES:
        section = re.search(rf'<section id="text-beside-{name}">.*?</section>', source, re.S)
        assert section is not None
        assert "<small>exploratory</small>" in section[0]
        assert f"metric of {name}" in section[0] and "source stdlib, bits 8 4" in section[0]
        assert "Exploratory and unadjusted: no verdict rests on this." in " ".join(section[0].split())
        assert "softmax, seed 2: 0.2<" in section[0]


def test_the_same_table_stands_on_the_page_and_in_the_text(page: Path) -> None:
    text = page.with_suffix(".md").read_text()
    assert "0.4 · 0.43 · 0.46" in text and "0.4 · 0.43 · 0.46" in page.read_text()
    assert "shift: metric of shift (40 scores a run)" in text
    assert "+0.23 (+0.155 to +0.305)" in text


def test_each_task_is_drawn_in_its_own_way(page: Path) -> None:
    heat = drawn(page, "diff_v1: answers written")
    # (0.4 + 0.43 + 0.46) / 3 at two lengths and three depths
    assert len(re.findall(r">43</text>", heat)) == 6
    assert "2 of 4, 256" in heat and "by seed: 40 %, 43 %, 46 %" in heat
    shots = drawn(page, "Log-loss, by demonstrations")
    assert [f">{n}</text>" in shots for n in (0, 1, 2, 4)] == [True] * 4 and ">guess</text>" in shots
    assert shots.count("<polyline") == 12
    within, beyond = drawn(page, "Gain from context"), drawn(page, "Gain from context, scaling yarn")
    assert ">512</text>" not in within and ">512</text>" in beyond
    assert drawn(page, "Logits rounded per head").count("<polyline") == 12
    drawn(page, "Weights rounded")


def test_accuracies_have_the_log_loss_beside_them(page: Path) -> None:
    assert found(page, "needle", "log_loss")["diff_v1"]["seeds"]["1"] == pytest.approx(1 - 0.43)
    assert found(page, "many_shot", "log_loss")["diff_v1"]["seeds"]["1"] == pytest.approx(2 - 0.43)


def test_an_arm_with_a_failed_seed_has_dots_and_no_interval(tmp_path: Path) -> None:
    story = Story(tasks=("text",), non_finite=frozenset({("text", "diff_v1", 1)}))
    arms = found(written(tmp_path / "quick", ["shift"], story), "shift")
    assert list(arms["diff_v1"]["seeds"]) == ["0", "2"]
    assert arms["diff_v1"]["interval"] is None
    assert arms["diff_v2"]["interval"]["n"] == 3


def test_runs_that_were_asked_other_things_are_not_paired(tmp_path: Path) -> None:
    other = {"settings": {"source": "prose", "seed": 1, "bits": [8, 4]}}
    arms = found(written(tmp_path / "quick", ["shift"], diff_v1_1=other), "shift")
    assert list(arms["diff_v1"]["seeds"]) == ["0", "1", "2"]
    assert list(arms["diff_v1"]["differences"]) == ["0", "2"]


def test_no_interval_where_all_seeds_agree(tmp_path: Path) -> None:
    same = {f"{arm}_{seed}": {"measure": measure(0.0)} for arm in ("softmax", "diff_v1") for seed in (0, 1, 2)}
    page = written(tmp_path / "quick", ["shift"], **same)
    assert found(page, "shift")["diff_v1"]["interval"] is None
    assert "| no spread |" in page.with_suffix(".md").read_text()


def test_what_could_not_be_done_is_told_with_its_reason(tmp_path: Path) -> None:
    page = written(tmp_path / "quick", ["shift"], diff_v1_1={"failed": "no place holds its facts"})
    assert "not done for diff_v1 seed 1 (no place holds its facts)" in page.read_text()
    assert list(found(page, "shift")["diff_v1"]["seeds"]) == ["0", "2"]


def test_a_plan_without_tasks_or_results_says_so(tmp_path: Path) -> None:
    assert "beside-" not in written(tmp_path / "none", []).read_text()
    page = written(tmp_path / "new", ["shift"], Story(tasks=("text",), started=False))
    assert "Nothing to draw yet" in page.read_text() and "shift: no result yet." in page.read_text()
