"""Planted models are judged as they must be: whoever copies is grounded, whoever invents is not, and sampling shows."""

import json
import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffattn.cli import main
from diffattn.data.tokenizer import Bytes
from diffattn.evals.base import Progress
from diffattn.evals.grounding import judge, statements, told
from diffattn.evals.hallucination import Hallucination
from diffattn.evals.intervals import share, t_quantile, wilson
from diffattn.evals.reader import GREEDY, ModelReader
from diffattn.evals.summaries import Summaries, summed
from diffattn.hub.convert import save
from support.hallucinating import PLAIN, asked, copies, misreads, run, shares
from support.models import small_model
from support.readers import Planted


@pytest.mark.parametrize(
    ("speaks", "kind", "otherwise"),
    [
        (copies, "grounded", "abstained"),
        (misreads, "misread", "misread"),
        (lambda _: " A walrus", "absent", "absent"),
        (lambda _: " I don't know.", "abstained", "abstained"),
        (lambda _: "\n", "none", "none"),
    ],
)
@pytest.mark.parametrize("context", [200, 4096])
def test_planted_models_are_told_apart(speaks: Any, kind: str, otherwise: str, context: int) -> None:
    result = run(Planted(speaks=speaks, context=context))
    assert shares(result, "answerable")[kind] == 1
    assert shares(result, "unanswerable")[otherwise] == 1
    assert result.measure.value == (kind in ("misread", "absent"))
    assert (result.parts["answerable"]["questions"], result.parts["unanswerable"]["questions"]) == (24, 8)
    assert len(result.outcomes) == result.measure.n == 24
    # Two models are paired by record: its questions share a context.
    assert result.clusters.keys() == result.outcomes.keys() and len(set(result.clusters.values())) == 8


def test_summaries_are_judged_statement_by_statement() -> None:
    task = Hallucination(records=6, what=("summaries",), statements=3)
    found = run(Planted(speaks=copies), task).parts["summaries"]
    assert (found["wrong"]["value"], found["kinds"]["grounded"]) == (0, 18)
    assert [place["value"] for place in found["by_place"]] == [0, 0, 0]
    text = " Korimar's room is 42. Balodan's age is a forty-two! Korimar's pet is unknown. Balodan's tool is axe."
    assert statements(text)[1] == ("balodan", "age", "42")
    by_hand = run(Planted(speaks=lambda _: " It says Ann's age is 8. Zed's pet is cow. Zed's pet is unknown."), task)
    assert by_hand.parts["summaries"]["kinds"] == {"grounded": 0, "misread": 0, "absent": 12, "abstained": 6, "none": 0}
    assert by_hand.parts["summaries"]["wrong_per_summary"]["value"] == 2
    uneven = summed([["grounded", "absent"], ["misread"], []])
    assert uneven["wrong"]["value"] == pytest.approx(2 / 3)
    assert [(place["value"], place["n"]) for place in uneven["by_place"]] == [(0.5, 2), (1.0, 1)]


@pytest.mark.parametrize(("characters", "kinds"), [(22, ["grounded"]), (17, []), (15, []), (10, [])])
def test_the_beginning_of_a_word_that_was_cut_is_no_statement(characters: int, kinds: list[str]) -> None:
    reader = Planted(speaks=lambda _: " Ann's pet is a horse.\n")
    asked = Summaries(["Facts of Ann?"], ["Ann's pet is horse."], 1, characters)
    assert asked.write(reader, "test", GREEDY, Progress(quiet=True))[0] == [kinds]


def test_confidence_that_knows_is_told_from_one_that_does_not() -> None:
    task = Hallucination(records=25, what=("confidence",))

    def sometimes(prompt: str) -> str:
        return copies(prompt) if random.Random(prompt).random() < 0.6 else misreads(prompt)

    def knows(prompt: str, text: str) -> float:
        right = told(prompt).get(asked(prompt), "none")
        return math.log(0.05 if judge(text, "", prompt.rsplit("Q: ")[-1], (right,)) == "grounded" else 0.01)

    found = run(Planted(knows, sometimes), task).parts["confidence"]
    # An answer of one token a character: the mean of log-probabilities, and so the minimum, depends on its length.
    assert found["signals"]["answer probability"]["auroc"]["value"] == 1
    assert found["signals"]["answer probability"]["risk"]["25 %"]["value"] == 0
    # All states are the same.
    assert found["signals"]["probe"]["auroc"]["value"] == 0.5
    assert 0 < found["wrong"]["value"] < 1

    blind = run(Planted(lambda p, t: -5 * random.Random(p + t).random(), sometimes), task).parts["confidence"]
    for name in ("minimum probability", "mean probability", "answer probability"):
        area = blind["signals"][name]["auroc"]
        assert area["low"] < 0.5 < area["high"]


def test_the_probability_of_an_answer_holds_that_of_its_own_writing(tmp_path: Path) -> None:
    """Capitals within a word stand in none of the usual ways to write it."""
    row = {"question": "Who sang?", "answers": ["McDonald"]}
    rows = [json.dumps({"context": f"McDonald sang {song}.", **row}) for song in ("a song", "a hymn")]
    (tmp_path / "q.jsonl").write_text("\n".join(rows))
    reader = Planted(lambda _, text: math.log(0.9 if text == " McDonald\n" else 0.001), lambda _: " McDonald")
    task = Hallucination(data=str(tmp_path / "q.jsonl"), what=("confidence",), distractors=0)
    raw = run(reader, task).parts["confidence"]["signals"]["answer probability"]["raw"]
    # 0.904 where it is right.
    assert raw["brier"] == pytest.approx(0.096**2)


def test_choices_are_judged_with_their_log_loss() -> None:
    def knows(prompt: str, choice: str) -> float:
        return -0.1 if choice.strip() == told(prompt).get(asked(prompt), "unknown") else -3.0

    found = run(Planted(knows), PLAIN).parts["chosen"]
    assert found["right"]["value"] == found["answerable"]["grounded"]["value"] == 1
    assert found["unanswerable"]["abstained"]["value"] == 1
    # Six facts, a stranger and unknown.
    assert found["log_loss"]["value"] == pytest.approx(math.log(1 + 7 * math.exp(-2.9)))
    assert (found["guess"], found["log_loss_of_guess"]) == (0.125, pytest.approx(math.log(8)))
    beside = run(Planted(), PLAIN).parts["beside"]
    # A model that likes all choices alike is as good as a guess.
    assert beside["log-loss of choices, nats"] == pytest.approx(beside["log-loss of a uniform guess, nats"])
    assert beside["chosen right by a uniform guess"] == 0.125


def test_intervals_cover_errors_that_cluster_in_records() -> None:
    """Of a record all answers are wrong or none is, so that 75 questions are worth 25; so are all of a summary.

    Of 120 intervals of 95 % from 107 to 119 hold the truth with 99 % probability; the seeds are fixed.
    """
    task = Hallucination(records=25, facts=3, what=("summaries",), distractors=0)
    covered: Counter[str] = Counter()
    widths, naive = [], []
    for seed in range(120):

        def draw(prompt: str, seed: int = seed) -> random.Random:
            return random.Random(f"{seed}{prompt.rsplit('Q: ', 1)[0]}")

        def speaks(prompt: str, draw: Any = draw) -> str:
            chance, text = draw(prompt), copies(prompt)
            wrong = chance.random() < 0.4
            if "Q: Facts of " not in prompt:
                return " walrus" if wrong else text
            # Of 1 to 3 statements, 2 at the mean, all wrong or none.
            statement = re.sub(r"\w+$", "walrus", text.split(".")[0]) if wrong else text.split(".")[0]
            return f"{statement}." * chance.randint(1, 3)

        result = run(Planted(speaks=speaks), task, seed=seed)
        summary, single = result.parts["summaries"], share(list(result.outcomes.values()))
        for name, measure, truth in (
            ("answers", result.measure.to_dict(), 0.4),
            ("statements", summary["wrong"], 0.4),
            ("wrong per summary", summary["wrong_per_summary"], 0.4 * 2),
            ("first statements", summary["by_place"][0], 0.4),
        ):
            covered[name] += measure["low"] <= truth <= measure["high"]
        widths.append(result.measure.high - result.measure.low)
        naive.append(single.high - single.low)
    assert all(107 <= count <= 119 for count in covered.values()), covered
    low, high = wilson(0.4, 25, t_quantile(25))
    # The shares vary, and with them the widths: by a few per cent. A width of 1 would cover as well.
    assert np.mean(widths) == pytest.approx(high - low, rel=0.1)
    # Taken as single questions: 1 / sqrt(3), and the normal quantile.
    assert np.mean(naive) < 0.65 * np.mean(widths)


def test_batch_size_changes_nothing() -> None:
    decoder = small_model(vocab_size=257, context=160, dtype=torch.float64)
    what = ("confidence", "diversity")
    task = Hallucination(records=1, characters=16, seeds=2, entropies=(0.5,), drawn=2, what=what)
    one, other = (run(ModelReader(decoder, Bytes(), batch_size=size), task) for size in (1, 3))
    assert json.dumps(one.parts["diversity"]) == json.dumps(other.parts["diversity"])
    assert one.outcomes == other.outcomes
    losses = [result.parts["chosen"]["log_loss"]["value"] for result in (one, other)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)
    rows = one.parts["diversity"]
    assert [row["method"] for row in rows] == ["greedy", "temperature", "top_p", "min_p"]
    # Entropy of top-p and min-p comes in steps.
    assert max(row["entropy"] for row in rows[1:]) - min(row["entropy"] for row in rows[1:]) < 0.1
    assert rows[0]["distinct"] == rows[0]["entropy"] == 0


def test_what_does_not_fit_or_is_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="does not hold 3 facts"):
        run(Planted(context=90))
    wrong = (({"facts": 16}, "facts is 16"), ({"entropies": (1.5,)}, "entropies"), ({"seeds": 1}, "seeds"))
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            run(Planted(), Hallucination(**options))  # type: ignore[arg-type]


def test_the_command_line_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(small_model(vocab_size=257, context=160), tmp_path / "model")
    options = ["--hallucination.what", "summaries", "confidence", "--hallucination.characters", "16", "--limit", "4"]
    assert main(["eval", str(tmp_path / "model"), "--tasks", "hallucination", *options, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "chosen right by a uniform guess" in printed and "log-loss of a uniform guess, nats" in printed
    assert [file.name.rsplit("-", 1)[0] for file in (tmp_path / "answers").iterdir()] == ["hallucination"]
