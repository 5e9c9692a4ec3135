"""Synthetic tasks can be solved by reading, not by remembering, and chance is what the caption says."""

import re

import pytest
import torch

from diffattn.data import DataError
from support.synthetic import opened, some

TASKS = ("recall", "needle", "induction")
ALL = (*TASKS, "needle_small", "many_shot_small", "hallucination_small", "unlearn")


def follower(tokens: list[int], place: int) -> list[int]:
    """The tokens that followed earlier occurrences of the token at `place`."""
    return [tokens[i + 1] for i in range(place) if tokens[i] == tokens[place]]


def combination(task: str, tokens: list[int], targets: list[int], keys: int) -> frozenset[object]:
    """What the reader has to bind: the pairs of a sequence, or its passage."""
    if task == "induction":
        length = next(i for i, target in enumerate(targets) if target >= 0)
        return frozenset([tuple(tokens[:length])])
    return frozenset((tokens[i - 1], tokens[i]) for i in range(1, len(tokens)) if tokens[i] >= keys)


@pytest.mark.parametrize("task", ALL)
def test_a_batch_is_a_pure_function_of_seed_and_step(task: str) -> None:
    data, again, other = opened(task), opened(task), opened(task, seed=1)
    later_first = [again.batch(step) for step in (9, 2)]
    for step, batch in zip((9, 2), later_first, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(data.batch(step), batch, strict=True))
    assert not torch.equal(data.batch(2).tokens, data.batch(9).tokens)
    assert not torch.equal(data.batch(2).tokens, other.batch(2).tokens)


@pytest.mark.parametrize("task", ALL)
def test_held_out_sequences_depend_on_no_run(task: str) -> None:
    one, two = opened(task), opened(task, seed=7, batch_size=48)
    for split in ("dev", "test"):
        assert torch.equal(some(one, split).tokens, some(two, split).tokens)
    assert not torch.equal(some(one, "dev").tokens, some(one, "test").tokens)
    part = torch.cat([batch.tokens for batch in two.evaluation("dev", tokens=100 * 64)])
    assert torch.equal(part, some(one, "dev").tokens[:100])


@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize("task", TASKS)
def test_a_reader_of_the_context_answers_everything(task: str, split: str) -> None:
    """Each answer follows an earlier occurrence of its question; for recall and induction every earlier one."""
    data = opened(task)
    tokens, targets, _ = some(data, split)
    scored = 0
    for row, answers in zip(tokens.tolist(), targets.tolist(), strict=True):
        for place in (i for i, answer in enumerate(answers) if answer >= 0):
            scored += 1
            found = follower(row, place)
            if task == "needle":
                found = [token for token in found if token >= data.sizes.keys]
            assert found and set(found) == {answers[place]}
            if place + 1 < len(row):
                assert row[place + 1] == answers[place]
    assert scored >= 500


@pytest.mark.parametrize("task", TASKS)
def test_combinations_are_on_one_side_and_their_tokens_are_trained_on(task: str) -> None:
    data = opened(task)
    seen = {}
    for split in ("train", "dev", "test"):
        tokens, targets, _ = some(data, split)
        rows = zip(tokens.tolist(), targets.tolist(), strict=True)
        seen[split] = {combination(task, row, answers, data.sizes.keys) for row, answers in rows}
    assert not seen["train"] & seen["dev"] and not seen["train"] & seen["test"] and not seen["dev"] & seen["test"]
    assert some(data, "train").tokens.unique().tolist() == list(range(data.vocab_size))


def test_a_small_task_s_combinations_are_split_too() -> None:
    """Few enough pairs that every combination comes up: those of dev are still never trained on."""
    data = opened("recall", keys=8, values=8, pairs=1, context=8)
    sides = {
        split: {combination("recall", row, [], 8) for row in some(data, split).tokens.tolist()}
        for split in ("train", "dev", "test")
    }
    assert sum(map(len, sides.values())) == len(set().union(*sides.values())) == 64


def test_recall_trains_on_every_number_of_pairs_and_tests_the_most() -> None:
    data = opened("recall")
    assert set((some(data, "train").targets >= 0).sum(1).tolist()) == set(range(1, 17))
    assert set((some(data, "dev").targets >= 0).sum(1).tolist()) == {16}


def test_recall_asks_for_distinct_keys_with_distinct_values() -> None:
    for row in some(opened("recall"), "dev").tokens[:, :32].tolist():
        assert len(set(row[0::2])) == len(set(row[1::2])) == 16


def test_needles_are_unambiguous() -> None:
    """Values are single tokens, all different; a value stands behind its own key and nowhere else."""
    data = opened("needle")
    counts = set()
    for row in some(data, "dev").tokens.tolist():
        pairs = {(row[i - 1], row[i]) for i in range(1, len(row)) if row[i] >= data.sizes.keys}
        assert all(key < data.sizes.keys for key, _ in pairs)
        assert len({key for key, _ in pairs}) == len({value for _, value in pairs}) == len(pairs)
        counts.add(len(pairs))
    assert counts == {1, 2, 4}


def test_needles_are_asked_for_equally_often_at_the_end() -> None:
    tokens, targets, _ = some(opened("needle"), "test")
    assert (targets[:, 57::2] >= 0).all() and int((targets >= 0).sum()) == 4 * len(targets)
    asked = tokens[:, 57::2]
    for row in asked.tolist():
        assert {row.count(key) for key in row} in ({1}, {2}, {4})


def test_noise_is_a_chain_with_at_most_four_followers_a_symbol() -> None:
    data = opened("needle")
    followers: dict[int, set[int]] = {}
    for row in some(data, "train").tokens[:, :57].tolist():
        for i in range(1, 57):
            # Facts interrupt the chain: only steps with noise around them count.
            if i > 1 and max(row[max(0, i - 2) : i + 3]) < data.sizes.keys:
                followers.setdefault(row[i - 1], set()).add(row[i])
    assert max(map(len, followers.values())) <= 4 and len(followers) == data.sizes.keys


def test_the_lag_of_induction_is_random() -> None:
    first = (some(opened("induction"), "train").targets >= 0).int().argmax(1)
    assert set(first.tolist()) == set(range(16, 33))


@pytest.mark.parametrize("task", ["recall", "needle"])
def test_chance_is_what_the_caption_says(task: str) -> None:
    """Guessing one of the values that stand before the questions."""
    data = opened(task)
    tokens, targets, _ = some(data, "dev")
    right, count = 0.0, 0
    for row, answers in zip(tokens.tolist(), targets.tolist(), strict=True):
        first = next(i for i, answer in enumerate(answers) if answer >= 0)
        shown = {token for token in row[:first] if token >= data.sizes.keys}
        for answer in (answer for answer in answers if answer >= 0):
            right += (answer in shown) / len(shown)
            count += 1
    said = re.search(r": (0\.\d+)$", data.describe())
    assert said is not None
    # Over 1024 draws of 1, 1/2 or 1/4 the mean has a standard error of 0.01; recall has no spread but the rounding.
    assert right / count == pytest.approx(float(said[1]), abs=0.03 if task == "needle" else 6e-4)


@pytest.mark.parametrize("context", [63, 64, 65, 100])
def test_any_context_that_is_long_enough_works(context: int) -> None:
    for task in TASKS:
        options = {"pairs": 8} if task == "recall" else {}
        data = opened(task, context=context, **options)
        for row, answers in zip(*(part.tolist() for part in some(data, "dev")[:2]), strict=True):
            assert len(row) == len(answers) == context and max(answers) >= 0


def test_every_sequence_is_a_document_of_its_own() -> None:
    data = opened("needle", batch_size=4)
    assert data.batch(3).documents.tolist() == [[12 + i] * 64 for i in range(4)]


def test_names_of_tokens() -> None:
    data = opened("recall")
    assert data.labels([0, 31, 32, 63]) == ["k0", "k31", "v0", "v31"]
    assert data.decode(data.sentence()[:2]) == " ".join(data.labels(data.sentence()[:2]))
    assert data.vocab_size == 64 and data.train_tokens is None and data.token_bytes is None


def test_the_fingerprint_follows_the_task_not_the_seed() -> None:
    assert opened("recall").fingerprint == opened("recall", seed=3).fingerprint
    assert opened("recall").fingerprint != opened("recall", pairs=8).fingerprint


@pytest.mark.parametrize(
    ("task", "context", "options", "message"),
    [
        ("recal", 64, {}, "unknown synthetic task 'recal'"),
        ("induction", 64, {"values": 3}, "has no values; leave --data.values unset"),
        ("recall", 64, {"pairs": 0}, "--data.pairs must be at least 1, got 0"),
        ("recall", 64, {"pairs": 40}, "40 pairs need as many distinct keys and values, got 32 and 32"),
        ("recall", 63, {}, "needs a context of at least 64 tokens, got 63"),
        ("needle", 64, {"pairs": 3}, "expected a power of two of pairs"),
        ("needle", 64, {"queries": 6}, "a multiple of it of queries, got 4 and 6"),
        ("needle", 19, {}, "needs a context of at least 20 tokens"),
        ("induction", 200, {}, "a passage of 100 distinct symbols needs as many keys, got 64"),
        ("recall", 64, {"heldout_sequences": 0}, "heldout-sequences must be at least 1"),
    ],
)
def test_impossible_sizes_are_refused(task: str, context: int, options: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        opened(task, context=context, **options)


def test_too_few_combinations_are_refused() -> None:
    with pytest.raises(DataError, match="too few combinations for a dev split of their own; add keys or values"):
        next(opened("recall", keys=1, values=1, pairs=1, context=8).evaluation("dev"))
