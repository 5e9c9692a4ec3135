"""Tasks of lm-eval, asked of a decoder of ours: its scores are those that the reader gives by hand."""

import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from diffattn.cli import main
from diffattn.data.tokenizer import Bytes
from diffattn.evals.base import Progress, Result
from diffattn.evals.harness import Harness
from diffattn.evals.intervals import share
from diffattn.evals.reader import GREEDY, ModelReader
from diffattn.evals.windows import Windowed, windows
from diffattn.hub.convert import save
from diffattn.model.decoder import Decoder
from support.models import small_model

CONTEXT = 64
CHOICES = ["cat", "a dog", "elephant"]
QUESTIONS = [
    {"question": f"Which one has {i} legs{'?' * (i % 3)}", "choices": CHOICES, "label": i % 3} for i in range(12)
]
TEXTS = ["short", "a text that is longer than the context of the model, " * 3, "x" * 65]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    # Weights this large make an untrained model opinionated, so that choices and texts differ by question.
    model = small_model("diff_v1", dtype=torch.float64, vocab_size=257, context=CONTEXT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


@pytest.fixture(scope="module")
def reader(decoder: Decoder) -> ModelReader:
    return ModelReader(decoder, Bytes(), identity="tiny")


@pytest.fixture(scope="module")
def written(reader: ModelReader) -> list[str]:
    return reader.write([f"{q['question']}\nAnswer:" for q in QUESTIONS], 5, ["\n"], GREEDY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, written: list[str]) -> Path:
    """Tasks as somebody would write them for lm-eval; of the texts asked for, the model gives every third."""
    place = tmp_path_factory.mktemp("tasks")
    answers = [
        {**q, "answer": text if i % 3 == 0 else "no"}
        for i, (q, text) in enumerate(zip(QUESTIONS, written, strict=True))
    ]
    lines(place / "test.jsonl", answers)
    lines(place / "train.jsonl", [{**q, "answer": "yes"} for q in QUESTIONS[:5]])
    lines(place / "texts.jsonl", [{"text": text} for text in TEXTS])
    questions = {"doc_to_text": "{{question}}\nAnswer:", "training_split": "train"}
    several = {"doc_to_choice": "choices", "doc_to_target": "label", "output_type": "multiple_choice"}
    writes = {"output_type": "generate_until", "doc_to_target": "answer", "metric_list": metrics("exact_match")}
    task(place, "legs", **questions, **several, metric_list=metrics("acc", "acc_norm"))
    task(place, "writes", **questions, **writes, generation_kwargs={"until": ["\n"], "max_gen_toks": 5, "num_beams": 1})
    task(place, "long", **questions, **writes, generation_kwargs={"until": ["\n"], "max_gen_toks": 60})
    drawn = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 8}
    task(place, "draws", **questions, **writes, generation_kwargs=drawn, repeats=3)
    rolling = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "text"}
    task(place, "texts", files={"test": "texts.jsonl"}, **rolling, metric_list=metrics("bits_per_byte", better=False))
    task(place, "nowhere", **questions, **several, dataset_path="nobody/has-these-data", dataset_kwargs={})
    (place / "both.yaml").write_text(yaml.safe_dump({"group": "both", "task": ["legs", "writes"]}))
    return place


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def metrics(*names: str, better: bool = True) -> list[dict[str, Any]]:
    aggregation = {"bits_per_byte": "bits_per_byte"}
    return [{"metric": n, "aggregation": aggregation.get(n, "mean"), "higher_is_better": better} for n in names]


def task(place: Path, name: str, files: dict[str, str] | None = None, **fields: Any) -> None:
    files = files or {"test": "test.jsonl", "train": "train.jsonl"}
    found = {split: str(place / file) for split, file in files.items()}
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": found, "cache_dir": str(place / "cache")}}
    (place / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, "test_split": "test", **data, **fields}))


def run(reader: ModelReader, folder: Path, name: str, limit: int | None = None, **rest: Any) -> Result:
    kept: Path | None = rest.pop("kept", None)
    progress = Progress(kept and kept / "answers.jsonl")
    return Harness.named(f"lm-eval:{name}", (folder,)).run(reader, limit, rest.get("seed", 0), progress)


def by_hand(reader: ModelReader, lengths: bool = False) -> list[float]:
    """Is each question answered right, with log-probabilities divided by the choices' lengths or not?"""
    pairs = [(f"{q['question']}\nAnswer:", f" {choice}") for q in QUESTIONS for choice in CHOICES]
    totals = np.reshape([scored.total for scored in reader.score(pairs)], (len(QUESTIONS), len(CHOICES)))
    best = (totals / [len(choice) for choice in CHOICES] if lengths else totals).argmax(1)
    return [float(b == q["label"]) for b, q in zip(best, QUESTIONS, strict=True)]


def test_shares_of_right_choices_are_those_of_the_reader(reader: ModelReader, folder: Path) -> None:
    found = run(reader, folder, "legs")
    right = by_hand(reader)
    assert 0 < sum(right) < len(right), "the example tells right from wrong"
    assert (found.task, found.metric) == ("lm-eval:legs", "acc")
    assert found.measure == share(right)
    assert list(found.outcomes.values()) == right
    assert found.parts["beside"] == {"acc_norm": pytest.approx(np.mean(by_hand(reader, lengths=True)))}
    error = np.std(right, ddof=1) / math.sqrt(len(right))
    assert found.parts["scores"]["legs"]["acc"] == pytest.approx({"value": np.mean(right), "stderr": error})
    assert found.settings["shots"] == 0 and found.settings["prompts_cut"] == 0 and found.settings["requests"] == 36
    assert json.loads(json.dumps(found.to_dict()))["settings"]["lm_eval"]


def test_batch_size_changes_no_score(reader: ModelReader, folder: Path) -> None:
    one = ModelReader(reader.model, Bytes(), batch_size=1)
    for name in ("legs", "writes", "texts"):
        few, many = run(one, folder, name), run(reader, folder, name)
        assert few.outcomes == many.outcomes
        assert few.measure.value == pytest.approx(many.measure.value, abs=1e-12)


def test_texts_are_those_that_the_reader_writes(reader: ModelReader, folder: Path, written: list[str]) -> None:
    found = run(reader, folder, "writes")
    assert len(set(written)) > 1
    assert list(found.outcomes.values()) == [float(i % 3 == 0) for i in range(len(QUESTIONS))]
    assert found.settings["answers_shortened"] == 0 and found.settings["options_ignored"] == ["num_beams"]


def test_a_text_has_half_of_a_short_context_at_most(reader: ModelReader, folder: Path) -> None:
    settings = run(reader, folder, "long").settings
    assert settings["answers_shortened"] == len(QUESTIONS)
    cut = sum(len(f"{q['question']}\nAnswer:") > CONTEXT // 2 for q in QUESTIONS)
    assert settings["prompts_cut"] == cut


def test_whole_texts_are_read_in_windows(reader: ModelReader, folder: Path) -> None:
    found = run(reader, folder, "texts")
    total = 0.0
    for text in TEXTS:
        ids = list(text.encode())
        for window in get_rolling_token_windows(ids, prefix_token=256, max_seq_len=CONTEXT, context_len=1):
            total += reader.score_ids([make_disjoint_window(window)])[0].total
    bits = -total / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    assert found.measure.value == pytest.approx(bits, rel=1e-12)
    assert found.metric == "bits_per_byte, lower is better"
    assert found.settings["texts_in_windows"] == 2
    assert found.measure.interval.startswith("none") and found.measure.low == -math.inf


@pytest.mark.parametrize(("prompt", "new"), [(1, 1), (1, 8), (1, 9), (1, 30), (5, 4), (20, 3), (20, 8), (20, 19)])
def test_windows_hold_every_new_id_once_behind_all_that_fits(prompt: int, new: int) -> None:
    whole = list(range(prompt + new))
    pairs = windows(whole[:prompt], whole[prompt:], context=8)
    assert [i for _, part in pairs for i in part] == whole[prompt:]
    for before, part in pairs:
        assert before and len(before) + len(part) - 1 == min(8, part[-1]), "the last id is not read"
        assert [b - a for a, b in pairwise([*before, *part])] == [1] * (len(before) + len(part) - 1)


def test_prompts_lose_their_beginning(reader: ModelReader) -> None:
    windowed, long = Windowed(reader), "a prompt that is longer than its model, which reads 64 bytes and no more"
    (scored,) = windowed.score([(long, " yes")])
    assert scored.total == pytest.approx(reader.score([(long[-(CONTEXT + 1 - 4) :], " yes")])[0].total, abs=1e-12)
    assert windowed.write([long], 10, (), GREEDY) == reader.write([long[-(CONTEXT - 10) :]], 10, (), GREEDY)


def test_examples_stand_before_questions(reader: ModelReader, folder: Path) -> None:
    found = run(reader, folder, "legs@3")
    assert found.settings["shots"] == 3
    assert found.settings["prompts_cut"] == 36, "three examples leave no room for a whole prompt"


def test_the_seed_draws_the_questions(reader: ModelReader, folder: Path) -> None:
    right = by_hand(reader)
    first, again, other = (run(reader, folder, "legs", limit=4, seed=seed) for seed in (0, 0, 1))
    assert first.outcomes == again.outcomes
    assert first.outcomes.keys() != other.outcomes.keys()
    for found in (first, other):
        assert len(found.outcomes) == 4 and all(right[int(i.split(",")[0])] == hit for i, hit in found.outcomes.items())


def test_what_is_asked_several_times_is_drawn_anew(reader: ModelReader, folder: Path, tmp_path: Path) -> None:
    run(reader, folder, "draws", kept=tmp_path)
    (file,) = tmp_path.iterdir()
    texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    # Kept draw by draw, each of all questions.
    each = len(texts) // 3
    assert len(texts) == 3 * each and len({tuple(texts[start : start + each]) for start in (0, each, 2 * each)}) == 3


def test_a_stopped_task_goes_on_where_it_ended(reader: ModelReader, folder: Path, tmp_path: Path) -> None:
    whole = run(reader, folder, "legs", kept=tmp_path)
    (file,) = tmp_path.iterdir()
    kept = file.read_text().splitlines()
    file.write_text("\n".join(kept[:20]) + "\n")
    asked: list[int] = []

    class Counting(ModelReader):
        def score_ids(self, pairs):
            asked.append(len(pairs))
            return super().score_ids(pairs)

    again = run(Counting(reader.model, Bytes(), identity="tiny"), folder, "legs", kept=tmp_path)
    assert (again.measure, again.settings) == (whole.measure, whole.settings)
    assert sum(asked) == 16


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere", "nowhere cannot be loaded"),
        ("legs@many", "expected lm-eval:NAME"),
        # For these two, lm-eval reads the list of all its tasks.
        pytest.param("both", "no score of its own; ask for legs, writes", marks=pytest.mark.slow),
        pytest.param("no_such_task_anywhere", "no task 'no_such_task_anywhere'", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_asked_is_one_line(reader: ModelReader, folder: Path, name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        run(reader, folder, name)
    assert "\n" not in str(raised.value)


def test_one_that_cannot_be_loaded_is_told_before_anything_is_asked(
    decoder: Decoder, folder: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("diffattn.evals.ladder.measure", pytest.fail)
    monkeypatch.setattr("diffattn.evals.ladder.run_tasks", pytest.fail)
    save(decoder, tmp_path / "model")
    call = ["eval", str(tmp_path / "model"), "--harness.include", str(folder), "--tasks", "loss", "lm-eval:legs"]
    assert main([*call, "lm-eval:nowhere"]) == 2
    assert "diffattn: lm-eval:nowhere: lm-eval's nowhere cannot be loaded" in capsys.readouterr().err


def test_the_command_line_runs_them_beside_others(decoder: Decoder, folder: Path, tmp_path: Path, capsys) -> None:
    save(decoder, tmp_path / "model")
    call = ["eval", str(tmp_path / "model"), "--tasks", "lm-eval:legs@1", "lm-eval:writes"]
    assert main([*call, "--harness.include", str(folder), "--limit", "3", "--out", str(tmp_path / "out")]) == 0
    table = capsys.readouterr().out
    assert "lm-eval:legs@1: acc" in table and "lm-eval:writes: exact_match" in table
    (found,) = json.loads((tmp_path / "out" / "eval.json").read_text())["models"]
    assert found["tasks"]["lm-eval:legs@1"]["settings"]["items"] == 3


class Absent:
    """Finds no lm_eval, as where it was never installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "lm_eval":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_without_lm_eval_the_extra_is_named(decoder: Decoder, tmp_path: Path, monkeypatch, capsys) -> None:
    save(decoder, tmp_path / "model")
    for module in [name for name in sys.modules if name.split(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    assert main(["eval", str(tmp_path / "model"), "--tasks", "lm-eval:arc_easy"]) == 2
    assert capsys.readouterr().err == "diffattn: lm_eval is missing: pip install 'diffattn[eval]'\n"
