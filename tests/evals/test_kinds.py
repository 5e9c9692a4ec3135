"""Answers told apart: the parts add up to the whole, whoever answers and however the sequences are batched."""

import json
from pathlib import Path

import pytest
import torch

from diffattn.data import Batch
from diffattn.evals.kinds import by_kind, grades
from diffattn.evals.perplexity import evaluate
from diffattn.files import write_json
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import build
from support.synthetic import opened, some

SIZES = {"keys": 16, "values": 16, "pairs": 4, "heldout_sequences": 48}


def answered(given: torch.Tensor) -> dict[str, dict[str, int]]:
    """Answers by kind of question, for whoever gives these tokens [N] to the held-out questions."""
    data = opened("hallucination_small", context=16, **SIZES)
    assert data.grader is not None
    columns = grades(data.grader, some(data, "dev"), given)
    columns["loss"] = columns["guess"]
    return {kind.name: kind.answers for kind in by_kind(data.grader, columns)}


def test_planted_answers_are_told_apart_exactly() -> None:
    targets = some(opened("hallucination_small", context=16, **SIZES), "dev").targets
    truth = targets[targets >= 0]
    absent = int((truth == 32).sum())
    nothing = {"right": 0, "misread from the context": 0, "not in the context": 0, "abstained": 0}
    here, gone = len(truth) - absent, absent
    assert answered(truth) == {
        "answerable": nothing | {"right": here},
        "unanswerable": nothing | {"right": gone},
    }
    assert answered(torch.full_like(truth, 32)) == {
        "answerable": nothing | {"abstained": here},
        "unanswerable": nothing | {"right": gone},
    }
    # A key is no value, so it cannot have been misread from a fact.
    assert answered(torch.zeros_like(truth)) == {
        "answerable": nothing | {"not in the context": here},
        "unanswerable": nothing | {"not in the context": gone},
    }


@pytest.mark.parametrize("task", ["needle_small", "many_shot_small", "hallucination_small", "unlearn"])
def test_the_parts_of_an_evaluation_add_up(task: str) -> None:
    data = opened(task, heldout_sequences=24)
    model = build(ModelConfig(vocab_size=data.vocab_size, width=24, layers=1, context=64, ffn_width=24), seed=0)
    whole = evaluate(model, data.evaluation("dev"), grader=data.grader)
    kinds = whole.kinds
    assert kinds is not None and len(kinds) > 1
    assert all(sum(kind.answers.values()) == kind.count for kind in kinds)
    assert sum(kind.count for kind in kinds) == whole.count
    assert sum(kind.answers["right"] for kind in kinds) / whole.count == pytest.approx(whole.accuracy, rel=1e-12)
    assert sum(kind.loss * kind.count for kind in kinds) / whole.count == pytest.approx(whole.loss, rel=1e-12)
    singly = [Batch(*(part[i : i + 1] for part in batch)) for batch in data.evaluation("dev") for i in range(24)]
    again = evaluate(model, singly, grader=data.grader).kinds
    assert again is not None
    assert [(kind.count, kind.guess) for kind in again] == [(kind.count, kind.guess) for kind in kinds]


def test_the_right_answer_is_still_the_first_in_the_file_that_a_report_reads(tmp_path: Path) -> None:
    data = opened("many_shot_small", context=64)
    model = build(ModelConfig(vocab_size=data.vocab_size, width=24, layers=1, context=64, ffn_width=24))
    found = evaluate(model, data.evaluation("dev", 256), grader=data.grader).to_dict()
    write_json(tmp_path / "test.json", found)
    kinds = json.loads((tmp_path / "test.json").read_text())["kinds"]
    assert kinds and all(next(iter(kind["answers"])) == "right" for kind in kinds)


def test_nothing_is_told_apart_where_the_data_does_not() -> None:
    data = opened("recall", keys=8, values=8, pairs=4, heldout_sequences=8)
    assert data.grader is None
    model = build(ModelConfig(vocab_size=16, width=24, layers=1, context=64, ffn_width=24), seed=0)
    assert evaluate(model, data.evaluation("dev"), grader=data.grader).kinds is None
