"""Items, answers and results: kept while a task runs, the same in any batch."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import diffattn
from diffattn.evals.base import Answer, Item, Progress, Result, ask, paired
from diffattn.evals.intervals import mean, share
from diffattn.evals.reader import GREEDY, Sampling
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
    file = tmp_path / "answers" / "t.jsonl"
    whole = ask(Planted(chance=prefers_long), "t", ITEMS, Progress(file))
    lines = file.read_text().splitlines()
    # Killed in the middle of a line.
    file.write_text("\n".join(lines[:2]) + "\n" + lines[2][:9])
    reader = Planted(chance=prefers_long)
    assert ask(reader, "t", ITEMS, Progress(file)) == whole
    assert reader.asked == 2 * 3
    assert len(file.read_text().splitlines()) == 5


def test_damaged_lines_are_asked_again_and_the_others_kept(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    whole = ask(Planted(chance=prefers_long), "t", ITEMS, Progress(file))
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([lines[0], b"\0" * 40, lines[2], b'{"asked": "x", "id": "1"}', b"\xff\xfe", b""]))
    reader = Planted(chance=prefers_long)
    assert ask(reader, "t", ITEMS, Progress(file)) == whole
    assert reader.asked == 2 * 3
    assert len(file.read_text().splitlines()) == 5


def test_answers_of_another_model_to_other_items_or_drawn_otherwise_are_not_taken(tmp_path: Path) -> None:
    """Though all of them stand in one file, each item's last answer included."""
    file = tmp_path / "t.jsonl"
    others = [replace(item, prompt=item.prompt + "y") for item in ITEMS]
    ways = [("planted", ITEMS, GREEDY), ("other", ITEMS, GREEDY), ("planted", others, GREEDY)]
    ways.append(("planted", ITEMS, Sampling(temperature=1.0)))
    found: list[list[Answer]] = []
    for identity, items, how in ways:
        reader = Planted(prefers_long, identity=identity)
        found.append(ask(reader, "t", items, Progress(file), how))
        assert reader.asked == 2 * len(items)
    for (identity, items, how), first in zip(ways, found, strict=True):
        reader = Planted(identity=identity)
        assert ask(reader, "t", items[:3], Progress(file), how) == first[:3]
        assert reader.asked == 0
    assert list(tmp_path.iterdir()) == [file]


def test_answers_of_another_version_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(Planted(), "t", ITEMS, Progress(tmp_path / "t.jsonl"))
    monkeypatch.setattr(diffattn, "__version__", "another")
    reader = Planted()
    ask(reader, "t", ITEMS, Progress(tmp_path / "t.jsonl"))
    assert reader.asked == 2 * len(ITEMS)


def test_where_stderr_is_no_terminal_a_line_now_and_then_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seconds, said in ((0.0, ["tiny, t: 2/5", "tiny, t: 4/5", "tiny, t: 5/5"]), (math.inf, [])):
        monkeypatch.setattr("diffattn.evals.base.EVERY", seconds)
        ask(Planted(), "t", ITEMS, Progress(title="tiny"), batch_size=2)
        lines = capsys.readouterr().err.splitlines()
        assert [line.rsplit(", ", 1)[0] for line in lines] == said


def test_things_that_are_gone_through_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("diffattn.evals.base.EVERY", 0.0)
    assert list(Progress().over("windows", "ab")) == ["a", "b"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.rsplit(", ", 1)[0] for line in lines] == ["windows: 1", "windows: 2", "windows: 2/2"]


def test_log_loss_is_among_the_choices() -> None:
    answer = Answer("a", "x", (math.log(0.1), math.log(0.3)))
    assert answer.log_loss(0) == pytest.approx(math.log(4))
    # Far too unlikely to be written as a probability.
    assert Answer("a", "x", (-2000.0, -2000.0)).log_loss(1) == pytest.approx(math.log(2))


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


def test_where_a_difference_of_two_groups_is_measured_each_group_is_paired() -> None:
    """Both groups lie far apart, which says nothing about how the two models differ."""
    draw = np.random.default_rng(0)
    far, near = ({f"{at}-{i}": float(x) for i, x in enumerate(draw.normal(at, 0.1, 60))} for at in (9, 0))
    changes = draw.normal(0.3, 0.1, 60), draw.normal(0.1, 0.1, 60)
    groups = zip((far, near), changes, strict=True)
    moved = [{name: some[name] + by[i] for i, name in enumerate(some)} for some, by in groups]
    one = replace(result({"a": 1.0}), outcomes=far, against=near)
    other = replace(one, outcomes=moved[0], against=moved[1])
    found, p = paired(one, other)
    assert (found.value, p) == (pytest.approx(changes[0].mean() - changes[1].mean()), None)
    # The standard error is that of the changes; 10 % for 1,000 draws of a bootstrap and its quantiles.
    error = math.hypot(*(x.std() for x in changes)) / math.sqrt(60)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    with pytest.raises(ValueError, match="not asked the same"):
        paired(one, replace(other, against={}))


def test_results_are_json() -> None:
    assert json.loads(json.dumps(result({"a": 1.0}).to_dict()))["measure"]["n"] == 1
