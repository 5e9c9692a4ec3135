"""Questions about records: what is told and what is not, files of questions, and whose paragraphs stand together."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from diffattn.evals.grounding import cut, told
from diffattn.evals.hallucination import Hallucination
from diffattn.evals.records import from_file, prepare
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


def written(file: Path, rows: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    names = ("context", "question", "answers")
    file.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return str(file)


def test_a_distractor_answers_nothing(tmp_path: Path) -> None:
    rows = [
        ("The car is red.", "Which colour is the car?", ["red"]),
        ("The car is blue.", "which colour is the CAR", ["blue"]),
        ("The cat is old.", "Which colour is the car?", []),
        ("Apples may be red.", "What may be red?", ["apples"]),
        ("Forty-two men came.", "How many came?", ["42"]),
        ("It cost 42 crowns.", "What did it cost?", ["42 crowns"]),
        ("It cost 1420 crowns.", "Where is it?", []),
    ]
    prepared = prepare(Planted(), written(tmp_path / "q.jsonl", rows), 50, 6, 6, 32, 0)
    beside = {
        record.paragraph: {row[0] for row in rows if row[0] in context and row[0] != record.paragraph}
        for record, context in zip(prepared.records, prepared.contexts, strict=True)
    }
    apples, men, crowns, nowhere = (row[0] for row in rows[3:])
    # Whoever asks the same is left out, and whoever holds an accepted answer, as whole words.
    assert beside["The car is red."] == {men, crowns, nowhere}
    assert beside["The car is blue."] == beside["The cat is old."] == {apples, men, crowns, nowhere}
    assert beside[men] == {*beside} - {men, crowns}
    assert beside[nowhere] == {*beside} - {nowhere}
    assert len(prepared.short) == 4
    result = run(Planted(), Hallucination(data=str(tmp_path / "q.jsonl"), distractors=4, what=()))
    assert result.settings["contexts_with_fewer_distractors"] == 1


def test_two_contexts_with_one_question_stay_two(tmp_path: Path) -> None:
    rows = [(f"It is {colour}.", "What is it?", [colour]) for colour in ("red", "blue")]
    data = written(tmp_path / "q.jsonl", rows)
    for seed in range(4):
        result = run(Planted(), Hallucination(data=data, what=()), seed=seed)
        assert (len(result.outcomes), result.settings["contexts_with_fewer_distractors"]) == (2, 2)


def test_only_contexts_that_are_asked_about_count_as_short() -> None:
    """Eight questions are about two records; all of ten have fewer distractors than they should."""
    result = run(Planted(context=300), Hallucination(records=10, distractors=4, what=()), limit=8)
    assert (result.settings["records"], result.settings["contexts_with_fewer_distractors"]) == (2, 2)


def test_generated_records_have_all_their_distractors() -> None:
    # Their values recur in one another, and names tell whose they are.
    assert prepare(Planted(), "records", 30, 15, 4, 32, 0).short == frozenset()
    assert prepare(Planted(context=300), "records", 30, 6, 4, 32, 0).short == frozenset(range(30))


def test_a_file_that_asks_nothing_or_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    row = '{"context": "é", "question": "b?", "answers": []}\n'
    for content, message in (
        (b"", "q.jsonl holds no question"),
        (b"\n \n", "q.jsonl holds no question"),
        ((row + row.replace("b?", "c?")).encode("latin-1"), r"q.jsonl, line 1: expected UTF-8, got b'\\xe9'"),
        (row.encode() + b"\n" + row.encode("latin-1"), "q.jsonl, line 3: expected UTF-8"),
        (row.replace("b?", "?").encode(), "line 1: expected .* with a word in the question"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            from_file(str(file), 10, 0, 32)
    file.write_bytes(b"\xef\xbb\xbf" + row.encode())
    assert from_file(str(file), 10, 0, 32)[0].paragraph == "é"


def test_a_question_asked_twice_of_a_context_has_one_set_of_answers(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    once = ("It is red.", "What is it?", ["red", "Red"])
    assert (
        len(from_file(written(file, [once, ("It is red.", "What  is it?", ["Red", "red"])]), 9, 0, 32)[0].questions)
        == 1
    )
    for answers in (["crimson"], []):
        with pytest.raises(ValueError, match=r"line 2: asks what line 1 asks of the same context, 'What is it\?'"):
            from_file(written(file, [once, ("It is red.", "What is it?", answers)]), 9, 0, 32)


def test_an_accepted_answer_is_cut_like_what_is_written(tmp_path: Path) -> None:
    """Else whoever copies an answer that is longer than what may be written would always be wrong."""
    long = "the Second Continental Congress of the year 1776"
    file = written(tmp_path / "q.jsonl", [(f"Signed by {long}. Sealed by none.", "Signed by whom?", [long])])
    for text, kind in ((f" {long}", "grounded"), (f" {long}.", "grounded"), (" the Second Continental Army", "absent")):
        result = run(Planted(speaks=lambda _, text=text: text), Hallucination(data=file, what=()))
        assert shares(result, "answerable")[kind] == 1
    assert cut(" The answer is: the 1st Congress.", 32) == " The answer is: the 1st Congress"
    assert (cut(" of the year", 9), cut(" January", 4)) == (" of the", " Jan")


def test_halves_of_characters_are_replaced(tmp_path: Path) -> None:
    file = written(tmp_path / "q.jsonl", [("It is \ud83d red.", "What \ud83d is it?", ["\ud83d red"])])
    (record,) = from_file(file, 9, 0, 32)
    assert record.paragraph == "It is ? red."
    assert record.questions[0][:2] == ("What ? is it?", ("? red",))
