"""Planted models learn from demonstrations exactly as computed by hand, and show an effect of order if they have it."""

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffattn.cli import main
from diffattn.data.tokenizer import Bytes
from diffattn.evals.base import Progress, Result, paired
from diffattn.evals.labelled import labelled
from diffattn.evals.many_shot import ManyShot
from diffattn.evals.reader import ModelReader
from diffattn.evals.shots import ordered
from diffattn.hub.convert import save
from support.models import small_model
from support.readers import Planted

Shown = list[tuple[str, str]]
QUIET = Progress(quiet=True)
SURE = math.log(0.9)


def parts_of(prompt: str) -> tuple[Shown, str]:
    """The demonstrations of a prompt and its question."""
    *lines, question = prompt.split("\n")
    shown = [tuple(line.split(" -> ")) for line in lines]
    return [(text, label) for text, label in shown], question.removesuffix(" ->")


def answers(label: Callable[[Shown, str], str], others: int, **fields: Any) -> Planted:
    """A reader that gives the label it believes in 90 %, and the `others` the rest; it reads no more than it can."""

    def chance(prompt: str, continuation: str) -> float:
        assert 1 + len(prompt) + len(continuation) - 1 <= reader.context
        believed = label(*parts_of(prompt))
        return SURE if continuation == f" {believed}\n" else math.log(0.1 / others)

    reader = Planted(chance, **fields)
    return reader


def last(shown: Shown, question: str) -> str:
    return shown[-1][1] if shown else "none"


def closest(shown: Shown, question: str) -> str:
    """The label of the demonstration that shares most words."""
    if not shown:
        return "none"
    return max(shown, key=lambda pair: len(set(pair[0].split()) & set(question.split())))[1]


def by_accident(seed: int) -> Planted:
    """Right or wrong by chance of the whole prompt."""
    return answers(lambda *prompt: random.Random(f"{seed}{prompt}").choice(["ash", "elm"]), 1)


def pool(folder: Path, shown: Sequence[tuple[str, str]], asked: Sequence[tuple[str, str]]) -> str:
    for name, rows in (("train", shown), ("test", asked)):
        (folder / f"{name}.csv").write_text("".join(f"{text},{label}\n" for text, label in rows))
    return str(folder)


def numbered(folder: Path, counts: dict[str, int], asked: dict[str, int]) -> str:
    """Texts that say their label and a number."""
    sides = (
        [(f"{side}{i} {label}", label) for label, n in of.items() for i in range(n)]
        for side, of in (("s", counts), ("q", asked))
    )
    return pool(folder, *sides)


def run(reader: Planted, data: str, seed: int = 0, limit: int | None = None, **options: Any) -> Result:
    return ManyShot(data=data, **options).run(reader, limit, seed, QUIET)  # type: ignore[arg-type]


def test_one_that_says_the_last_label_shows_the_effect_of_order(tmp_path: Path) -> None:
    asked = {"ash": 10, "elm": 6, "oak": 4, "yew": 4}
    found = run(answers(last, 3), numbered(tmp_path, dict.fromkeys(asked, 4), asked))
    orders = found.parts["orders"]
    assert orders["arranged"]["own class last"]["accuracy"]["value"] == 1
    assert orders["arranged"]["own class first"]["accuracy"]["value"] == 0
    assert orders["last_over_first"]["accuracy"]["value"] == 1 and orders["last_over_first"]["p"] < 1e-6
    assert orders["last_over_first"]["log_loss"]["value"] == pytest.approx(math.log(0.1 / 3) - SURE)
    # In a random order it is right on the class that is last, and on no other.
    assert set(orders["accuracy"]["means"]) <= {count / 24 for count in asked.values()}
    assert orders["accuracy_by_class"]["p"] == pytest.approx(1 / 1001)
    # In blocks the largest class of the demonstrations, of equals the first by name, comes first.
    assert orders["arranged"]["blocks"]["accuracy"]["value"] == asked["yew"] / 24


def test_one_without_an_effect_of_order_shows_none_beyond_items(tmp_path: Path) -> None:
    data = numbered(tmp_path, {"ash": 8, "elm": 8}, {"ash": 20, "elm": 20})
    sorts = run(answers(lambda shown, question: min(shown)[1] if shown else "ash", 1), data).parts["orders"]
    assert (sorts["accuracy"]["range"], sorts["accuracy"]["p"]) == (0, 1)
    assert sorts["accuracy"]["deviation"]["high"] == 0
    # One that is right by accident of the whole prompt differs from order to order, but not by more than that does.
    small = numbered(tmp_path, {"ash": 3, "elm": 3}, {"ash": 10, "elm": 10})
    found = [run(by_accident(seed), small, seed).parts["orders"]["accuracy"] for seed in range(40)]
    assert min(one["range"] for one in found) > 0
    # p is spread evenly from 0 to 1: alarms at 5 % are at most 6 of 40 with 98.6 % probability, at 2.5 % at most 4 with
    # 99.7 %, and the mean of 40 is within three standard errors of one half. The seeds are fixed.
    assert sum(one["p"] <= 0.05 for one in found) <= 6
    assert sum(one["deviation"]["low"] > 0 for one in found) <= 4
    assert np.mean([one["p"] for one in found]) == pytest.approx(0.5, abs=3 * (1 / 12 / 40) ** 0.5)


def test_one_that_ignores_the_context_scores_chance(tmp_path: Path) -> None:
    labels = ("ash", "elm", "oak", "yew")
    data = numbered(tmp_path, dict.fromkeys(labels, 4), dict.fromkeys(labels, 5))
    found = run(Planted(), data)
    assert found.measure.value == found.parts["chance"]["accuracy"] == found.parts["majority"] == 0.25
    for level in found.parts["shots"]:
        # Labels are equally long here, and this reader says the same of every continuation.
        assert (
            level["log_loss"]["value"] == pytest.approx(found.parts["chance"]["log_loss"]) == pytest.approx(math.log(4))
        )
        assert level["accuracy"]["value"] == 0.25
    assert found.parts["beside"]["p of order"] == 1


def test_one_that_copies_the_closest_label_scores_as_by_hand(tmp_path: Path) -> None:
    shown = [("red apple", "fruit"), ("green pear", "fruit"), ("fast car", "wheels"), ("slow truck", "wheels")]
    asked = [("apple pie", "fruit"), ("an old car", "wheels"), ("my truck", "wheels"), ("green van", "wheels")]
    found = run(answers(closest, 1), pool(tmp_path, shown, asked))
    # The van is green as the pear is; the others are right.
    assert found.measure.value == 0.75
    assert found.settings["shots"] == [0, 1, 2, 4]
    level = found.parts["shots"][-1]
    assert level["shots"] == 4
    assert level["log_loss"]["value"] == pytest.approx(-(3 * math.log(0.9) + math.log(0.1)) / 4)
    assert found.parts["shots"][0]["log_loss"]["value"] == pytest.approx(math.log(2))
    assert found.parts["orders"]["accuracy"]["means"] == (0.75,) * 10


def test_a_label_that_begins_another_is_not_taken_for_it(tmp_path: Path) -> None:
    lines = {" card\n": 0.1, " card lost\n": 0.9}

    def chance(prompt: str, continuation: str) -> float:
        """Letter by letter: what all lines that begin so have together."""
        return math.log(sum(p for line, p in lines.items() if line.startswith(continuation)))

    data = numbered(tmp_path, {"card": 2, "card lost": 2}, {"card": 3, "card lost": 1})
    found = run(Planted(chance), data)
    assert found.measure.value == 0.25
    assert found.parts["shots"][-1]["log_loss"]["value"] == pytest.approx(-(3 * math.log(0.1) + math.log(0.9)) / 4)


def test_demonstrations_are_balanced_and_none_is_asked(tmp_path: Path) -> None:
    prompts: set[str] = set()
    reader = Planted(lambda prompt, continuation: prompts.add(prompt) or -1.0)
    run(reader, numbered(tmp_path, {"ash": 30, "elm": 3, "oak": 9}, {"ash": 5, "elm": 2}), questions=7)
    assert len(prompts) > 100
    for prompt in prompts:
        shown, question = parts_of(prompt)
        assert question.startswith("q") and all(text.startswith("s") for text, _ in shown)
        assert len(set(shown)) == len(shown)
        counts = Counter(label for _, label in shown)
        # Classes take turns until their texts are used up.
        if len(shown) <= 16:
            assert abs(counts["ash"] - counts["oak"]) <= 1
        if len(shown) <= 8:
            assert max(counts.values(), default=0) - min(counts[label] for label in ("ash", "elm", "oak")) <= 1


def test_sizes_adapt_to_the_context(tmp_path: Path) -> None:
    labels = [f"label {i}" for i in range(40)]
    shown = [(f"{'long ' * 60}{i} {label}", label) for label in labels for i in range(3)]
    asked = [(f"{i} {'question ' * 30}", label) for i, label in enumerate(labels)]
    data = pool(tmp_path, [(f"{i} {text}", label) for i, (text, label) in enumerate(shown)], asked)
    sizes = {}
    for context in (256, 1024, 65536):
        settings = run(answers(last, 1, context=context), data, limit=3, orders=2).settings
        sizes[context] = [settings[name] for name in ("characters", "classes", "shots", "questions")]
    assert sizes == {
        256: [25, 4, [0, 1, 2, 4], 3],
        1024: [100, 4, [0, 1, 2, 4, 8], 3],
        65536: [200, 40, [0, 1, 2, 4, 8, 16, 32, 64], 3],
    }
    with pytest.raises(ValueError, match="does not hold one demonstration"):
        run(answers(last, 1, context=40), data)


def test_every_order_fits_where_a_text_is_longer_in_front(tmp_path: Path) -> None:
    class Longer(Planted):
        """Some tokenizers write the beginning of a text in other tokens than the same words within it."""

        def count(self, text: str) -> int:
            return super().count(text) + 100 * (text[:1] == "s" and text.split(" ")[1] == "ash")

    data = labelled(numbered(tmp_path, {"ash": 4, "elm": 4}, {"ash": 2, "elm": 2}))
    reader = Longer(context=150)
    for seed in range(4):
        shots, found = ordered(reader, data, data.asked, 4, 10, np.random.default_rng(seed))
        assert shots == 2
        assert max(reader.count(prompt) for prompts in found.values() for prompt in prompts) <= 150 - len(" ash\n")


def test_two_models_are_paired_where_they_were_asked_the_same(tmp_path: Path) -> None:
    data = numbered(tmp_path, {"ash": 4, "elm": 4}, {"ash": 4, "elm": 4})
    one, other = run(answers(last, 1), data), run(answers(closest, 1), data)
    assert paired(one, other)[0].n == 8
    with pytest.raises(ValueError, match="not asked the same"):
        paired(one, run(answers(last, 1), data, seed=1))


def test_the_interval_holds_the_truth(tmp_path: Path) -> None:
    data = numbered(tmp_path, {"ash": 8, "elm": 8}, {"ash": 15, "elm": 15})

    def mostly(shown: Shown, question: str) -> str:
        right = question.split()[1]
        wrong = {"ash": "elm", "elm": "ash"}[right]
        return right if random.Random(f"{shown}{question}").random() < 0.7 else wrong

    found = [run(answers(mostly, 1, context=40), data, seed) for seed in range(100)]
    loss = -0.7 * SURE - 0.3 * math.log(0.1)
    # Only one demonstration fits, so that no orders are asked.
    assert found[0].settings["shots"] == [0, 1] and found[0].parts["orders"] is None
    # Of 100 repetitions at 95 % from 89 to 99 hold the truth with 98 % probability; the seeds are fixed.
    assert 89 <= sum(one.measure.low <= 0.7 <= one.measure.high for one in found) <= 99
    levels = [one.parts["shots"][-1]["log_loss"] for one in found]
    assert 89 <= sum(level["low"] <= loss <= level["high"] for level in levels) <= 99
    # And they are as wide as they must be, give or take 15 %: 2.05 (t, 29) or 1.96 standard errors on each side.
    error = math.sqrt(0.7 * 0.3 / 30)
    assert np.mean([one.measure.high - one.measure.low for one in found]) == pytest.approx(3.92 * error, rel=0.15)
    error *= SURE - math.log(0.1)
    assert np.mean([level["high"] - level["low"] for level in levels]) == pytest.approx(4.1 * error, rel=0.15)


def test_batch_size_changes_no_score(tmp_path: Path) -> None:
    data = numbered(tmp_path, {"ash": 4, "elm tree": 4}, {"ash": 2, "elm tree": 1})
    model = small_model("diff_v1", dtype=torch.float64, vocab_size=257, context=96)
    one, other = (
        ManyShot(data=data, orders=2).run(ModelReader(model, Bytes(), "", size), None, 0, QUIET) for size in (1, 16)
    )
    assert one.outcomes == other.outcomes
    for a, b in zip(one.parts["shots"], other.parts["shots"], strict=True):
        assert a["log_loss"]["value"] == pytest.approx(b["log_loss"]["value"], abs=1e-10)


def test_a_saved_model_is_asked_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = numbered(tmp_path, {"ash": 4, "elm": 4}, {"ash": 4, "elm": 4})
    save(small_model("diff_v1", torch.float32, vocab_size=257, context=96), tmp_path / "model")
    call = ["eval", str(tmp_path / "model"), "--tasks", "many_shot", "--many-shot.data", data, "--limit", "3"]
    assert main([*call, "--many_shot.orders", "2", "--out", str(tmp_path / "out")]) == 0
    table = capsys.readouterr().out
    assert "many_shot: share of questions labelled right" in table and "many_shot: majority share" in table
    (kept,) = json.loads((tmp_path / "out" / "eval.json").read_text())["models"]
    assert kept["tasks"]["many_shot"]["settings"]["questions"] == 3
    assert main(["eval", str(tmp_path / "model"), "--tasks", "many_shot", "--many_shot.data", "nowhere"]) == 2
    assert "no labelled texts at 'nowhere'" in capsys.readouterr().err
