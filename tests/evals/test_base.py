"""Items, answers and results: kept while a task runs, the same in any batch."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import diffattn
from diffattn.evals.base import Answer, Item, Progress, Result, ask, paired
from diffattn.evals.intervals import mean, share
from diffattn.evals.tasks import run_tasks
from support.readers import Planted

ITEMS = [Item(id=str(i), prompt="x" * (7 - i), choices=("a", "bb")) for i in range(5)]


def prefers_long(prompt: str, continuation: str) -> float:
    return -len(prompt) / len(continuation)


def test_answers_come_in_the_order_of_the_items_whatever_the_batch() -> None:
    reader = Planted(chance=prefers_long)
    found = [ask(reader, "t", ITEMS, Progress(), batch_size=size) for size in (1, 2, 16)]
    assert found[0] == found[1] == found[2]
    assert found[0][1] == Answer("1", "bb", (-6.0, -3.0), (False, False))


def test_choices_and_texts_may_be_mixed() -> None:
    writes = Item(id="w", prompt="xx", max_new_tokens=3)
    found = ask(Planted(speaks=lambda prompt: "ab\ncd"), "t", [ITEMS[0], writes, ITEMS[1]], Progress())
    assert [answer.text for answer in found] == ["a", "ab", "a"]


def test_a_stopped_task_goes_on_where_it_ended(tmp_path: Path) -> None:
    whole = ask(Planted(chance=prefers_long), "t", ITEMS, Progress(tmp_path))
    (file,) = tmp_path.iterdir()
    lines = file.read_text().splitlines()
    # Killed in the middle of a line.
    file.write_text("\n".join(lines[:2]) + "\n" + lines[2][:9])
    reader = Planted(chance=prefers_long)
    assert ask(reader, "t", ITEMS, Progress(tmp_path)) == whole
    assert reader.asked == 2 * 3
    assert len(file.read_text().splitlines()) == 5


def test_answers_of_another_model_or_other_items_are_not_taken(tmp_path: Path) -> None:
    ask(Planted(), "t", ITEMS, Progress(tmp_path))
    for reader, items in ((Planted(identity="other"), ITEMS), (Planted(), ITEMS[:3])):
        ask(reader, "t", items, Progress(tmp_path))
        assert reader.asked == 2 * len(items)


def test_answers_of_another_version_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(Planted(), "t", ITEMS, Progress(tmp_path))
    monkeypatch.setattr(diffattn, "__version__", "another")
    reader = Planted()
    ask(reader, "t", ITEMS, Progress(tmp_path))
    assert reader.asked == 2 * len(ITEMS)


def test_log_loss_is_among_the_choices() -> None:
    answer = Answer("a", "x", (math.log(0.1), math.log(0.3)))
    assert answer.log_loss(0) == pytest.approx(math.log(4))
    # Far too unlikely to be written as a probability.
    assert Answer("a", "x", (-2000.0, -2000.0)).log_loss(1) == pytest.approx(math.log(2))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_at_least_1(limit: int) -> None:
    with pytest.raises(ValueError, match="limit: got"):
        run_tasks(Path("anywhere"), {}, limit=limit)


def test_two_items_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="same id"):
        ask(Planted(), "t", [ITEMS[0], ITEMS[0]], Progress())


def result(outcomes: dict[str, float]) -> Result:
    return Result("t", "share", share(list(outcomes.values())), {}, 0.0, "", outcomes=outcomes)


def test_two_models_are_paired_by_item() -> None:
    first, second = {"a": 1.0, "b": 0.0, "c": 0.0}, {"c": 1.0, "a": 1.0, "b": 1.0}
    difference, p = paired(result(first), result(second))
    assert (difference.value, p) == (pytest.approx(2 / 3), 0.5)
    assert paired(result({"a": 0.25, "b": 0.5}), result({"a": 0.5, "b": 0.5}))[0].value == 0.125
    with pytest.raises(ValueError, match="not asked the same"):
        paired(result(first), result({"a": 1.0}))


def test_items_of_a_document_count_together_when_models_are_paired() -> None:
    """As if each document were asked once: what is told twice is no more certain."""
    once = {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0}, {"a": 1.0, "b": 1.0, "c": 0.0, "d": 1.0}
    twice = [result({f"{name}{i}": score for name, score in scores.items() for i in "xy"}) for scores in once]
    clusters = {name: name[0] for name in twice[0].outcomes}
    difference, p = paired(*(replace(one, clusters=clusters) for one in twice))
    alone = mean([once[1][name] - once[0][name] for name in once[0]])
    assert (difference.value, difference.low, difference.high) == pytest.approx((alone.value, alone.low, alone.high))
    assert p is None


def test_results_are_json() -> None:
    assert json.loads(json.dumps(result({"a": 1.0}).to_dict()))["measure"]["n"] == 1
