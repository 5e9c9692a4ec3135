"""Tasks for small models: read by an independent reader, guessed by a planted guesser, graded by hand."""

import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from diffattn.data import Batch, DataError
from diffattn.data.base import Grader
from diffattn.data.synthetic import SyntheticTask
from support.synthetic import opened, some

SMALL = ("needle_small", "many_shot_small", "hallucination_small", "unlearn")
SPLITS = ("train", "dev", "test")
FEW = {
    "needle_small": {"keys": 3, "values": 3, "pairs": 1, "queries": 1},
    "many_shot_small": {"keys": 64, "values": 1, "pairs": 1},
    "hallucination_small": {"keys": 8, "values": 8, "pairs": 1},
    "unlearn": {"keys": 4, "values": 4, "pairs": 1},
}
"""Sizes of which a few hundred sequences go through most combinations."""


def questions(batch: Batch) -> Iterator[tuple[list[int], int]]:
    """What stands before each scored answer, the asking token included, and the answer."""
    for row, answers in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        yield from ((row[: place + 1], answer) for place, answer in enumerate(answers) if answer >= 0)


def told_of(data: SyntheticTask, seen: list[int]) -> list[int]:
    """The values that followed earlier mentions of the name that the sequence ends with."""
    length = 2 if data.config.task == "needle_small" else 1
    name, values = seen[-length:], range(data.sizes.keys, data.sizes.keys + data.sizes.values)
    before = range(len(seen) - length)
    return [seen[i + length] for i in before if seen[i : i + length] == name and seen[i + length] in values]


def combination(data: SyntheticTask, row: list[int]) -> frozenset[tuple[int, ...]]:
    """The facts of a sequence: names with their values in the order in which they were told."""
    length = 2 if data.config.task == "needle_small" else 1
    facts: dict[tuple[int, ...], list[int]] = {}
    for i in range(length, len(row)):
        if data.sizes.keys <= row[i] < data.sizes.keys + data.sizes.values:
            values = facts.setdefault(tuple(row[i - length : i]), [])
            values += [row[i]] if row[i] not in values else []
    return frozenset((*name, *values) for name, values in facts.items())


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("task", SMALL)
def test_a_reader_of_the_context_answers_everything(task: str, split: str) -> None:
    data, scored = opened(task), 0
    for seen, answer in questions(some(data, split)):
        told, scored = told_of(data, seen), scored + 1
        assert answer == (told[-1] if told else data.vocab_size - 1)
        assert told or task == "hallucination_small"
        assert len(set(told)) <= (2 if task == "unlearn" else 1)
    assert scored >= 500


@pytest.mark.parametrize("task", SMALL)
def test_the_answer_follows_its_question_and_every_token_is_trained_on(task: str) -> None:
    data = opened(task)
    batch = some(data, "train")
    assert batch.tokens.unique().tolist() == list(range(data.vocab_size))
    scored = batch.targets[:, :-1] >= 0
    assert (batch.tokens[:, 1:][scored] == batch.targets[:, :-1][scored]).all()


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("task", SMALL)
def test_no_combination_of_dev_or_test_is_trained_on(task: str, few: bool) -> None:
    data = opened(task, **FEW[task]) if few else opened(task)
    sides = [{combination(data, row) for row in some(data, split).tokens.tolist()} for split in SPLITS]
    assert sum(map(len, sides)) == len(set().union(*sides))
    assert not few or len(sides[0]) < 460 == 512 - 52  # so often that a combination comes again in training


def guesser(task: str, keys: int, unknown: int) -> Callable[[list[int], int], float]:
    """Whoever knows which values stand there and which have been used, and not what belongs to what: P(right)."""

    def unused(seen: list[int], answer: int) -> float:
        # An answer tells its value once more; a fact of unlearn is told twice before.
        limit = 1
        values = Counter(token for token in seen if token >= keys)
        if task == "unlearn":
            told = list(zip(seen[0:-1:2], seen[1::2], strict=True))
            spent = {value for i, (key, value) in enumerate(told) if [k for k, _ in told[:i]].count(key) == 2}
            return (answer not in spent) / len(values.keys() - spent)
        left = [value for value, times in values.items() if times <= limit and value != unknown]
        if task == "hallucination_small" and 0.75 / len(left) <= 0.25:
            return float(answer == unknown)
        return (answer in left) / len(left)

    def commonest(seen: list[int], answer: int) -> float:
        times = Counter(seen[1::2])
        first = [label for label in times if times[label] == max(times.values())]
        return (answer in first) / len(first)

    return commonest if task == "many_shot_small" else unused


@pytest.mark.parametrize("task", SMALL)
def test_a_planted_guesser_is_right_as_often_as_caption_and_grades_say(task: str) -> None:
    data = opened(task)
    assert data.grader is not None
    unknown = data.sizes.keys + data.sizes.values
    play = guesser(task, data.sizes.keys, unknown)
    asked = list(questions(some(data, "dev")))
    chances = [play(seen, answer) for seen, answer in asked]
    assert chances == pytest.approx([data.grader.grade(seen, answer, answer).guess for seen, answer in asked])
    said = re.search(r": (0\.\d+)$", data.describe())
    assert said is not None
    # 1,792 answers and more, most of them guessed with much less than even odds: a standard error below 0.006.
    assert sum(chances) / len(chances) == pytest.approx(float(said[1]), abs=0.02)


def graded(grader: Grader, seen: list[int], answer: int, given: list[int]) -> list[str]:
    """The kind of question, and the kind of each given answer."""
    found = [grader.grade(seen, answer, one) for one in given]
    return [grader.questions[found[0].question].name, *(grader.answers[grade.answer] for grade in found)]


def test_a_needle_is_right_of_a_lookalike_of_another_name_or_made_up() -> None:
    data = opened("needle_small", keys=10, values=10, pairs=2, queries=2)
    assert data.grader is not None
    told = [1, 2, 10, 9, 1, 5, 11, 3, 4, 12, 3, 6, 13, 9]
    seen = [*told, 1, 2]
    assert graded(data.grader, seen, 10, [10, 11, 12, 14, 3]) == [
        "2 facts, with lookalikes",
        "right",
        "of a lookalike",
        "of another name",
        "not in the context",
        "not in the context",
    ]
    assert data.grader.grade(seen, 10, 10).guess == 1 / 4
    assert data.grader.grade([*seen, 10, 3, 4], 12, 12).guess == 1 / 3
    assert graded(data.grader, [7, 8, 10, 9, 9, 7, 8], 10, [10]) == ["1 fact", "right"]


def test_a_label_is_right_shown_or_not_shown() -> None:
    data = opened("many_shot_small", keys=10, values=4, pairs=8)
    assert data.grader is not None
    seen = [0, 10, 1, 10, 2, 11, 0]
    assert graded(data.grader, seen, 10, [10, 11, 12]) == [
        "2 to 3 shots",
        "right",
        "another label shown",
        "no label shown",
    ]
    assert [data.grader.grade(seen, label, label).guess for label in (10, 11)] == [1.0, 0.0]
    assert [kind.name for kind in data.grader.questions] == [
        "1 shot",
        "2 to 3 shots",
        "4 to 7 shots",
        "8 to 15 shots",
        "16 to 31 shots",
    ]


def test_abstaining_is_right_only_where_the_context_has_no_answer() -> None:
    data = opened("hallucination_small", keys=8, values=8, pairs=4)
    assert data.grader is not None
    told, unknown = [0, 8, 1, 9, 2, 10, 3, 11], 16
    assert graded(data.grader, [*told, 0], 8, [8, 9, 15, unknown]) == [
        "answerable",
        "right",
        "misread from the context",
        "not in the context",
        "abstained",
    ]
    assert graded(data.grader, [*told, 7], unknown, [unknown, 9, 15]) == [
        "unanswerable",
        "right",
        "misread from the context",
        "not in the context",
    ]
    assert data.decode([0, 8, 16]) == "k0 v0 ?"


def test_a_value_that_was_contradicted_is_told_from_those_of_other_keys() -> None:
    data = opened("unlearn", keys=8, values=8, pairs=2)
    assert data.grader is not None
    told = [0, 8, 1, 9, 0, 10, 1, 9]
    assert graded(data.grader, [*told, 0], 10, [10, 8, 9, 15]) == [
        "contradicted",
        "right",
        "the old value",
        "of another key",
        "not in the context",
    ]
    assert graded(data.grader, [*told, 1], 9, [9, 8]) == ["stated twice", "right", "of another key"]
    assert data.grader.grade([*told, 0, 10, 1], 9, 9).guess == 1 / 2


def shares(data: SyntheticTask, split: str) -> dict[str, float]:
    """How the questions of a split are shared out among their kinds."""
    assert data.grader is not None
    asked = [data.grader.grade(seen, answer, answer).question for seen, answer in questions(some(data, split))]
    return {kind.name: asked.count(i) / len(asked) for i, kind in enumerate(data.grader.questions)}


def test_kinds_of_questions_come_as_often_as_they_should() -> None:
    # Standard errors of these shares are below 0.012, for questions of one sequence are drawn apart or nearly so.
    needles = shares(opened("needle_small"), "dev")
    assert list(needles.values()) == pytest.approx([1 / 14, 1 / 7, 1 / 7, 1 / 7] * 2, abs=0.04)
    for split in ("train", "dev"):
        assert shares(opened("hallucination_small"), split)["unanswerable"] == pytest.approx(0.25, abs=0.04)
        assert shares(opened("unlearn"), split)["contradicted"] == pytest.approx(0.5, abs=0.04)


def test_names_of_a_needle_share_a_symbol_with_their_lookalike_only() -> None:
    data = opened("needle_small")
    counts = set()
    for row in some(data, "dev").tokens.tolist():
        names = [fact[:2] for fact in combination(data, row)]
        shared = [sum((a == c) + (b == d) for c, d in names if (c, d) != (a, b)) for a, b in names]
        assert max(shared) <= 1
        counts.add((len(names), sum(shared)))
    assert counts == {(1, 0), (2, 0), (4, 0), (6, 0), (2, 2), (4, 4), (6, 4), (8, 4)}


def test_every_label_has_equally_many_inputs() -> None:
    data = opened("many_shot_small", pairs=8, context=256)
    for row in some(data, "dev").tokens.tolist():
        times = Counter(label for _, label in combination(data, row))
        assert times == dict.fromkeys(range(64, 68), 2)


@pytest.mark.parametrize("task", ["hallucination_small", "unlearn"])
def test_training_has_every_number_of_facts_and_the_held_out_sequences_all(task: str) -> None:
    data = opened(task)
    asked = {split: set((some(data, split).targets >= 0).sum(1).tolist()) for split in SPLITS}
    assert asked["train"] == set(range(1, data.sizes.pairs + 1))
    assert asked["dev"] == asked["test"] == {data.sizes.pairs}


def test_each_key_of_a_sequence_is_asked_for_once() -> None:
    for task in ("needle_small", "hallucination_small", "unlearn"):
        tokens, targets, _ = some(opened(task), "dev")
        for row, answers in zip(tokens.tolist(), targets.tolist(), strict=True):
            names = [
                tuple(row[i - 1 : i + 1]) if task == "needle_small" else row[i] for i, a in enumerate(answers) if a >= 0
            ]
            assert len(set(names)) == len(names)


@pytest.mark.parametrize("context", [63, 64, 65, 100])
@pytest.mark.parametrize("task", SMALL)
def test_any_context_that_is_long_enough_works(task: str, context: int) -> None:
    tokens, targets, _ = some(opened(task, context=context, heldout_sequences=64), "dev")
    assert tokens.shape == targets.shape == (64, context)
    assert (targets >= 0).any(1).all()


@pytest.mark.parametrize(
    ("task", "context", "options", "message"),
    [
        ("needle_small", 64, {"pairs": 3}, "expected one of these as pairs and no more queries than that, got 3 and 2"),
        ("needle_small", 64, {"pairs": 1}, "no more queries than that, got 1 and 2"),
        ("needle_small", 64, {"values": 7}, "6 facts and 2 lookalikes need as many distinct keys and values"),
        ("needle_small", 28, {}, "needs a context of at least 29 tokens, got 28"),
        ("many_shot_small", 64, {"pairs": 6}, "no more pairs than keys and a multiple of the values, got 6, 64 and 4"),
        ("many_shot_small", 31, {}, "needs a context of at least 32 tokens, got 31"),
        ("hallucination_small", 64, {"keys": 23}, "12 pairs and as many absent keys need distinct keys, got 23"),
        ("hallucination_small", 47, {}, "needs a context of at least 48 tokens, got 47"),
        ("hallucination_small", 64, {"queries": 4}, "has no queries; leave --data.queries unset"),
        ("unlearn", 64, {"values": 15}, "twice as many values, got 32 and 15"),
        ("unlearn", 47, {}, "needs a context of at least 48 tokens, got 47"),
    ],
)
def test_impossible_sizes_are_refused(task: str, context: int, options: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        opened(task, context=context, **options)
