"""Questions about records: what is told and what is not, files of questions, and whose paragraphs stand together."""

import json
from pathlib import Path

import pytest

from diffattn.evals.grounding import told
from diffattn.evals.hallucination import Hallucination
from diffattn.evals.records import prepare
from support.hallucinating import asked, run, shares
from support.readers import Planted


def test_what_is_told_of_nobody_is_not_in_the_record() -> None:
    prepared = prepare(Planted(), "records", 20, 6, 2, 32, 0)
    for one in prepared.asked():
        fact = told(one.context).get(asked(one.prompt))
        assert one.question.answers == (() if fact is None else (fact,))
        assert len(told(one.context)) == 18
        assert len(set(one.question.options)) == 8


def test_a_file_of_questions_is_asked_with_paragraphs_of_others(tmp_path: Path) -> None:
    rows = [
        {
            "context": f"The mayor of Town{i} is Mr Smith{i}.",
            "question": f"Who is mayor of Town{i}?",
            "answers": answers,
        }
        for i, answers in enumerate([["Smith0", "Mr Smith0"], ["Mr Smith1"], []])
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    seen: list[str] = []
    reader = Planted(speaks=lambda prompt: seen.append(prompt) or " Mr Smith1")
    result = run(reader, Hallucination(data=str(file), distractors=2, what=()))
    assert all(f"Smith{i}" in prompt for prompt in seen for i in range(3))
    # Right of the second town; of the others it stands in a distractor.
    assert shares(result, "answerable") == {"grounded": 0.5, "misread": 0.5, "absent": 0, "abstained": 0, "none": 0}
    assert shares(result, "unanswerable")["misread"] == 1
    assert (result.parts["chosen"], result.parts["summaries"]) == (None, None)
    alone = run(Planted(speaks=lambda _: " Mr Smith1"), Hallucination(data=str(file), distractors=0, what=()))
    assert shares(alone, "answerable")["absent"] == 0.5
    for line in ('{"context": "a", "question": "b", "answers": "c"}', '{"context": "a"}', '["a"]', "{"):
        file.write_text(line)
        with pytest.raises(ValueError, match="line 1: expected"):
            run(Planted(), Hallucination(data=str(file)))
    with pytest.raises(ValueError, match="no questions at"):
        run(Planted(), Hallucination(data=str(tmp_path / "none.jsonl")))
