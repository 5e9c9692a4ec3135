"""One arm laid side by side over the tasks: signs are counted, intervals shown, and nothing is decided."""

from typing import Any

from diffattn.lab.report.across import across, across_table


def finding(mean: float | None, low: float | None, high: float | None, unit: str = "nats") -> dict[str, Any]:
    verdict = "SCREEN" if mean is not None else "UNSTABLE"
    numbers = {"unit": unit}
    return {"arm": "v1", "verdict": verdict, "mean": mean, "low": low, "high": high, "n": 3, "numbers": numbers}


TASKS = {
    "text": {"findings": [finding(-0.02, -0.08, 0.04)]},
    "warmup": {"findings": [finding(0.05, 0.01, 0.09)]},
    "batch": {"findings": [finding(None, None, None)]},
    "recall": {"findings": [finding(-1.0, None, None, "doublings of tokens")]},
    "empty": {"findings": []},
}


def test_signs_are_counted_and_named_and_nothing_is_decided() -> None:
    (found,) = across(["v1"], TASKS)
    assert "ahead of the baseline in 2 of 4 tasks (text, recall), behind in 1 of 4 tasks (warmup)" in found["sentence"]
    assert "excludes 0 in 1 of 4 tasks (warmup)" in found["sentence"]
    assert "Exploratory" in found["sentence"]


def test_the_table_has_a_row_for_each_task_with_its_interval_or_why_it_has_none() -> None:
    (found,) = across(["v1"], TASKS)
    table = across_table(found)
    columns = {column.name: column.cells for column in table.groups[0][1]}
    assert [name for name, _, _ in table.rows] == ["text", "warmup", "batch", "recall"]
    assert columns["Difference"] == ["−0.020", "+0.050", "—", "−1.000"]
    assert columns["Interval"] == ["−0.080 to +0.040", "+0.010 to +0.090", "UNSTABLE", "too few seeds"]
    assert columns["Unit"][-1] == "doublings of tokens"


def test_an_arm_that_no_task_has_judged_is_left_out() -> None:
    assert across(["v2"], TASKS) == []
