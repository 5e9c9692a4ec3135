"""Needles: planted readers score what they must, prompts are as described, a model is asked and not touched."""

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from diffattn.cli import main
from diffattn.data.tokenizer import Bytes
from diffattn.evals.base import paired
from diffattn.evals.facts import Sample, cities, given, lookalikes
from diffattn.evals.grounding import judge
from diffattn.evals.intervals import mcnemar
from diffattn.evals.needle import (
    NEEDLES,
    Needle,
    NeedleAlike,
    NeedleChain,
    NeedleCorrupted,
    NeedleDistractors,
    NeedlePairs,
)
from diffattn.evals.power import mcnemar_power, told
from diffattn.evals.reader import ModelReader
from diffattn.evals.retrieved import heat_table
from diffattn.hub.convert import save
from diffattn.model.decoder import Decoder
from support.models import small_model
from support.needles import answers, copier, run
from support.readers import Planted


class Spy(Planted):
    """Remembers what it was asked."""

    def __init__(self, context: int = 512) -> None:
        self.prompts: list[str] = []
        super().__init__(speaks=lambda prompt: self.prompts.append(prompt) or "", context=context)


def prompts(task: Any, context: int = 512, **how: Any) -> list[str]:
    spy = Spy(context)
    run(task, spy, **how)
    return spy.prompts


@pytest.mark.parametrize("kind", NEEDLES)
def test_who_reads_by_the_rules_finds_everything(kind: Any) -> None:
    result = run(kind(samples=2, source="noise"), copier())
    assert (result.measure.value, result.measure.n) == (1.0, len(result.outcomes))
    (cell,) = result.parts["cells"].values()
    assert cell["written"]["each"]["value"] == cell["chosen"]["each"]["value"] == 1.0
    assert cell["chosen"]["log_loss"]["value"] < 0.02
    assert all(place[score]["value"] == 1.0 for place in result.parts["heat"] for score in ("all", "each", "chosen"))


@pytest.mark.parametrize("kind", NEEDLES)
def test_who_ignores_the_context_scores_a_guess(kind: Any) -> None:
    # 140 pairs do not fit; 8 lots of 5 depths are a multiple of the options (4 or 20).
    options: dict[str, Any] = {"pairs": (20,)} if kind is NeedlePairs else {}
    result = run(kind(samples=8, source="noise", lengths=(1.0,), **options), Planted(speaks=lambda _: "0000 and 0001"))
    (cell,) = result.parts["cells"].values()
    assert result.measure.value == cell["written"]["each"]["value"] == cell["written"]["guess"] == 0
    chosen = cell["chosen"]
    assert chosen["each"]["value"] == pytest.approx(chosen["guess"])
    assert chosen["log_loss"]["value"] == pytest.approx(chosen["log_loss_of_guess"])
    assert chosen["guess"] == pytest.approx(math.exp(-chosen["log_loss_of_guess"])) == (0.05 if options else 0.25)


@pytest.mark.parametrize("kind", [NeedleAlike, NeedleDistractors, NeedleCorrupted])
def test_who_is_careless_is_told_apart(kind: Any) -> None:
    def careless(prompt: str) -> str:
        right = answers(prompt)[0]
        name = prompt.rsplit(" ", 1)[-1].removesuffix(":")
        alike = re.findall(rf"{name[:3]}.{name[4:]}: (\d+)", prompt)
        return next(number for number in alike if number != right)

    result = run(kind(samples=2, source="noise"), Planted(speaks=careless, context=512))
    (cell,) = result.parts["cells"].values()
    assert cell["written"]["given"] == {"right": 0, "tempting": 1, "other": 0, "absent": 0, "none": 0}


SAMPLE = Sample((), "", ("1234", "5678"), ("1234", "5678", "9999"), (), frozenset({"4321"}))


@pytest.mark.parametrize(
    ("text", "judged"),
    [
        ("1234 and 5678", ["right", "right"]),
        ("  1234   5678  ", ["right", "right"]),
        ("THE NUMBERS: 1234, 5678. And 1.", ["right", "right"]),
        ("**1234** and (5678).", ["right", "right"]),
        ('"1234", "5678"', ["right", "right"]),
        ("A: 1234; B = 5678!", ["right", "right"]),
        # A digit that is joined to more says something else.
        ("x1234y and 5678th", ["absent", "absent"]),
        ("-1234 and 5678.5", ["absent", "absent"]),
        ("1234/2 and 1.5678", ["absent", "absent"]),
        ("1234,5678", ["absent", "none"]),
        ("1 2 3 4", ["absent", "absent"]),
        ("5678 and 1234", ["other", "other"]),
        ("12345 and 05678", ["absent", "absent"]),
        ("1,234 and 5678", ["absent", "right"]),
        ("4321 and 9999", ["tempting", "other"]),
        ("1234", ["right", "none"]),
        ("", ["none", "none"]),
        ("١٢٣٤ and 1234", ["right", "none"]),
    ],
)
def test_written_answers_are_whole_numbers_as_they_stand_in_the_text(text: str, judged: list[str]) -> None:
    assert given(text, SAMPLE) == judged


@pytest.mark.parametrize(
    "text",
    [
        *("8647", " 8647.", "(8647)", "8647, so", "8647.5", " .8647", "-8647", "−8647", "8647/2", "8,647", "8 647"),
        *("18647", "x8647"),
    ],
)
def test_needles_and_answers_in_context_agree_on_what_is_a_number(text: str) -> None:
    (needle,) = given(text, Sample((), "", ("8647",), ("8647",), ()))
    assert (needle == "right") == (judge(text, "The age is 8647.", "The age?", ["8647"]) == "grounded")
    assert needle == ("right" if re.fullmatch(r" ?\(?8647(\)|\.|, so)?", text) else "absent")


def test_names_and_numbers_are_distinct_equally_long_and_in_no_filler(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("BALABAR 1234 lanavik " * 3000)
    for prompt in prompts(Needle(source=str(tmp_path), digits=2, facts=6), context=900):
        told = re.findall(r"Magic number of (\w+): (\d+)\.", prompt)
        names, told_numbers = [name for name, _ in told], [number for _, number in told]
        assert len({*names}) == len({*told_numbers}) == 6
        assert {len(name) for name in names} == {7} and {len(number) for number in told_numbers} == {2}
        filler = "".join(re.sub(r"Magic numbers? of [^\n]*", "", prompt).split("\n")).casefold()
        assert "1234" in filler
        assert not any(word.casefold() in filler for word in (*names, *told_numbers))


def test_prompts_are_filled_to_their_length() -> None:
    for length in (400, 700):
        for prompt in prompts(Needle(source="noise", lengths=(length,), samples=2), context=1000):
            # Beside it: the start token, the answers " 1234 and 5678" and 4 tokens; the next word has up to 9.
            assert length - 9 <= 1 + len(prompt) + 14 + 4 <= length


@pytest.mark.parametrize("depth", [0, 50, 100])
def test_answers_stand_at_their_depth(depth: int) -> None:
    task = Needle(facts=3, asked=1, samples=3, source="noise", depths=(depth,), lengths=(1.0,))
    for prompt in prompts(task, context=1000):
        body, asked = prompt.rsplit("\n", 1)
        before, after = body.split(f"{asked} ")
        words = [len(re.findall(r"\b[a-z]{2,}\b", re.sub("Magic.*", "", part))) for part in (before, after)]
        assert words[0] / sum(words) == pytest.approx(depth / 100, abs=0.01)
        if depth != 50:
            assert (before if depth == 0 else after[len("1234.") :]) == ""


def test_pairs_stand_at_their_depth_and_as_many_as_fit() -> None:
    task = NeedlePairs(depths=(0, 50, 100), samples=2)
    spy = Spy(400)
    result = run(task, spy)
    count = result.parts["heat"][0]["facts"]
    assert result.settings["cells"] == {f"{n} told, 1 asked": f"{count} told, 1 asked" for n in (75, 140)}
    assert 15 < count < 25
    places = [re.findall(r'"(\w+)": "\d', p).index(p.rsplit('"', 3)[-3]) for p in spy.prompts]
    # Of an even count two are in the middle.
    assert {0, count - 1} < {*places} <= {0, (count - 1) // 2, count // 2, count - 1}


def test_the_papers_cells_are_a_preset_that_says_what_its_samples_can_tell() -> None:
    result = run(Needle(preset="paper", source="noise", lengths=(1.0,), depths=(50,)), copier(300))
    assert list(result.settings["cells"]) == [f"{n} told, {r} asked" for n, r in ((1, 1), (2, 2), (4, 2), (6, 2))]
    assert [cell["samples"] for cell in result.parts["cells"].values()] == [50] * 4
    place = result.parts["told"]["place"]
    assert place["samples"] == 50
    assert place["half_width"]["0.5"] == pytest.approx(0.1335, abs=1e-3)
    # 6 samples must be won and none lost; of 50 that happens in 80 % of repetitions with a share of 0.154.
    assert place["difference"]["nested"] == pytest.approx(0.154, abs=2e-3)
    assert 0.2 < place["difference"]["independent"] < 0.3
    assert told(4)["difference"] == {"nested": None, "independent": None}


def test_the_power_of_mcnemars_test_is_that_of_a_simulation() -> None:
    draw, found = random.Random(0), 0
    for _ in range(1000):
        outcomes = draw.choices("lw.", (0.1, 0.4, 0.5), k=40)
        found += mcnemar([x == "l" for x in outcomes], [x == "w" for x in outcomes])[1] <= 0.05
    # Four standard errors of a share of 1000.
    assert mcnemar_power(40, 0.1, 0.4) == pytest.approx(found / 1000, abs=0.06)


def decoder(context: int = 256) -> Decoder:
    return small_model("diff_v1", dtype=torch.float64, vocab_size=257, context=context)


@pytest.fixture(scope="module")
def batches() -> dict[int, Any]:
    task = Needle(facts=2, asked=2, depths=(50,), samples=3, lengths=(150, 1.0), source="noise", attention=2)
    return {size: run(task, ModelReader(decoder(), Bytes(), batch_size=size)) for size in (1, 16)}


def test_batch_size_changes_no_score(batches: dict[int, Any]) -> None:
    one, many = (json.dumps(batches[size].parts["cells"], sort_keys=True) for size in (1, 16))
    assert batches[1].outcomes == batches[16].outcomes
    numbers = [[float(x) for x in re.findall(r"[-\d.]+(?:e-?\d+)?", text)] for text in (one, many)]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-10)  # float64


def test_attention_at_the_answer_is_whole_and_leaves_the_model_alone(batches: dict[int, Any]) -> None:
    attention = batches[16].parts["attention"]
    assert [look["length"] for look in attention["at"]] == [150, 256]
    for look in attention["at"]:
        assert len(look["layers"]) == 2
        for layer in look["layers"]:
            assert [map["name"] for map in layer["maps"]] == ["A1", "A2", "effective"]
            for shares in (*layer["maps"], layer["output"]):
                assert sum(shares[part]["absolute"]["mean"] for part in ("answer", "first", "rest")) == pytest.approx(1)
                assert all(share > 0 for share in shares["answer"]["absolute"]["heads"])
            softmax = layer["maps"][0]
            assert softmax["answer"]["signed"]["mean"] == pytest.approx(softmax["answer"]["absolute"]["mean"])
            # An untrained map spreads evenly: 4 tokens of an answer among up to 256.
            assert softmax["answer"]["absolute"]["mean"] == pytest.approx(4 / look["length"], rel=0.5)


def test_beyond_the_context_a_model_is_stretched_and_a_planted_reader_is_not() -> None:
    reader = ModelReader(decoder(100), Bytes())
    task = Needle(facts=1, asked=1, samples=1, depths=(50,), lengths=(1.0, 2.0), scaling="yarn", source="noise")
    result = run(task, reader)
    assert result.settings["tokens"] == [100, 200]
    assert len(result.outcomes) == 2 and reader.model.config.context == 100
    with pytest.raises(ValueError, match="beyond the context of 100"):
        run(task, Planted(context=100))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Needle(lengths=(40,)), "one fact, its question and the answer need 65 tokens, and 40 are there"),
        (Needle(facts=1), "facts: got 1, needs a whole number of at least 2"),
        (Needle(depths=(0, 101)), "depths are per cent"),
        (Needle(lengths=()), "lengths are finite and above 0"),
        (Needle(lengths=(0.5, math.inf)), r"lengths are finite and above 0.*got \[0\.5, inf\]"),
        (Needle(lengths=(math.nan,)), "lengths are finite and above 0"),
        (Needle(facts=60, lengths=(4000,)), "60 cities are needed, and there are 42"),
        (Needle(facts=20, digits=1, lengths=(4000,)), "9 numbers of 1 digits"),
        (Needle(digits=20), "18 digits at most"),
        (NeedleAlike(lookalikes=5), "4 lookalikes"),
        (NeedleDistractors(distractors=5), "4 other numbers"),
        (NeedleCorrupted(tellings=2), "tellings: got 2, needs a whole number of at least 3"),
        (NeedleChain(hops=1), "hops: got 1"),
        (NeedlePairs(pairs=()), "pairs is empty"),
    ],
)
def test_what_cannot_be_asked_is_refused(task: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(task, Planted())


def test_two_models_are_paired_where_they_were_asked_the_same() -> None:
    class Words(Planted):
        """As many tokens as words would have, so that more of the filler fits."""

        def count(self, text: str) -> int:
            return super().count(text) - text.count(" ")

    task = Needle(source="noise", samples=2)
    one = run(task, copier())
    assert paired(one, run(task, Planted(context=512)))[0].value == -1
    for other in (run(task, copier(), seed=1), run(task, Words(context=512))):
        with pytest.raises(ValueError, match="not asked the same"):
            paired(one, other)


def test_numbers_to_choose_that_no_fact_tells_stand_nowhere(tmp_path: Path) -> None:
    for name in range(100):
        (tmp_path / f"{name}.txt").write_text("".join(f"{number} w{chr(64 + name)} " for number in range(10, 30)) * 4)
    task = Needle(source=str(tmp_path), facts=1, asked=1, digits=2, samples=10, lengths=(400,))
    asked: set[tuple[str, str]] = set()
    reader = Planted(lambda prompt, choice: asked.add((prompt, choice)) or -1.0)
    run(task, reader)
    assert len(asked) == 200
    assert sum(choice.strip() in prompt for prompt, choice in asked) == 50


def test_places_without_a_question_are_said_in_words() -> None:
    task = Needle(facts=2, asked=1, samples=2, source="noise", lengths=(300, 400), depths=(0, 50, 100))
    assert run(task, copier()).parts["unasked"] == run(task, copier(), limit=6).parts["unasked"] == ""
    one = run(task, copier(), limit=1).parts
    (place,) = one["heat"]
    depths = ", ".join(f"depth {depth} %" for depth in (0, 50, 100) if depth != place["depth"])
    assert one["unasked"] == (
        "No question at 5 of 6 places (facts, length, depth); none at all at "
        f"{700 - place['length']} tokens; none at all at {depths}; --limit 6 asks at each."
    )
    # 75 pairs do not stand in 1000 characters.
    pairs = run(NeedlePairs(samples=1, lengths=(1000, 3000), depths=(0, 100), pairs=(75,)), copier(4000), limit=1)
    assert pairs.parts["unasked"].startswith("No question at 3 of 4 places (facts, length, depth); none at all at 1000")
    assert pairs.parts["unasked"].endswith("; 2 do not hold the facts; --limit 4 asks at each that does.")


@pytest.mark.parametrize("limit", range(1, 14))
def test_what_is_said_to_ask_everywhere_does(limit: int) -> None:
    task = Needle(facts=1, asked=1, samples=3, source="noise", lengths=(200,), depths=(0, 25, 50, 75))
    said = run(task, copier(), limit=limit).parts["unasked"]
    if found := re.search(r"--limit (\d+)", said):
        assert run(task, copier(), limit=int(found[1])).parts["unasked"] == ""
    else:
        assert said == "" and limit >= 4


def test_a_table_has_a_line_for_each_depth_and_a_column_for_each_length() -> None:
    task = Needle(facts=2, asked=1, samples=3, source="noise", lengths=(300, 400), depths=(0, 100))
    where = Planted(speaks=lambda prompt: answers(prompt)[0] if "Magic" in prompt[:10] else "", context=512)
    heat = run(task, where).parts["heat"]
    lines = [re.split(r"\s{2,}", line) for line in heat_table(heat).split("\n")]
    assert lines[0] == [
        "2 told, 1 asked: % (of n)",
        *(f"{s}, {n} tokens" for s in ("written", "chosen") for n in (300, 400)),
    ]
    assert [line[0] for line in lines[1:]] == ["depth 0 %", "depth 100 %", "guess"]
    assert lines[1][1:3] == ["100 (3)", "100 (3)"]
    assert lines[3][1:] == ["0", "0", "25", "25"]
    chosen = {(place["depth"], place["length"]): place["chosen"]["value"] for place in heat}
    assert lines[2][3:] == [f"{100 * chosen[100, length]:.0f} (3)" for length in (300, 400)]
    assert max(map(len, heat_table(heat, 60).split("\n"))) <= 60


def test_a_table_shows_what_a_guess_reaches() -> None:
    beside = run(Needle(source="noise", samples=1), copier()).parts["beside"]
    assert beside["each asked number written"] == beside["each chosen among the context's"] == 1
    assert (beside["chosen by a guess"], beside["log-loss of a guess, nats"]) == (0.25, pytest.approx(math.log(4)))
    assert beside["log-loss of choices, nats"] < 0.02


def test_limit_and_seed_do_as_they_say() -> None:
    task = Needle(source="noise")
    few = run(task, copier(), limit=7)
    assert few.measure.n == len(few.outcomes) == 7
    assert len({name.rsplit("/", 2)[1] for name in few.outcomes}) == 5
    # As many samples as pairs of a cell and a length still stand at every depth.
    places = [name.split("/") for name in run(Needle(source="noise", preset="paper"), copier(), limit=8).outcomes]
    assert [len({*part}) for part in zip(*places, strict=True)][:3] == [4, 2, 5]
    assert prompts(task, limit=5) == prompts(task, limit=5)
    assert not {*prompts(task, limit=5)} & {*prompts(task, limit=5, seed=1)}


def test_lookalikes_differ_in_one_letter_and_other_cities_in_more() -> None:
    names = cities(random.Random(0), 42)
    for name in names:
        for other in lookalikes(random.Random(0), name, 4):
            assert [a != b for a, b in zip(name, other, strict=True)] == [False] * 3 + [True] + [False] * 3
    assert len({name[:3] for name in names}) == 42


def test_the_command_measures_a_saved_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(small_model("diff_v1", dtype=torch.float32, vocab_size=257, context=160), tmp_path / "model")
    tasks = ["needle", "needle_chain", "needle_pairs"]
    options = ["--needle.facts", "2", "--needle.asked", "1", "--limit", "2", "--out", str(tmp_path / "out")]
    # What is named twice is done once.
    assert main(["eval", str(tmp_path / "model"), "--tasks=needle", *tasks, *options]) == 0
    out = capsys.readouterr().out
    assert "needle: share of samples with all asked numbers written" in out
    assert "2 told, 1 asked: % (of n)  written, 160 tokens" in out
    for name in tasks:
        assert str(tmp_path / "out" / f"{name}.html") in out.splitlines()
        assert "<svg" in (tmp_path / "out" / f"{name}.html").read_text(encoding="utf-8")
    (found,) = json.loads((tmp_path / "out" / "eval.json").read_text())["models"]
    assert list(found["tasks"]) == tasks
    assert found["tasks"]["needle"]["settings"]["cells"] == {"2 told, 1 asked": "2 told, 1 asked"}
    assert found["tasks"]["needle"]["measure"]["n"] == 2
