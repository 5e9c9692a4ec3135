"""More of the context for the same targets: planted models gain what they know how to use."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffattn.data.base import DataError
from diffattn.data.tokenizer import Bytes
from diffattn.evals.base import Progress, Result
from diffattn.evals.intervals import mean
from diffattn.evals.long_context import LongContext, cumulative, same_targets, usable
from diffattn.evals.reader import ModelReader
from diffattn.evals.texts import named, passages, token_nats
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Decoder, build
from support.models import small_config, small_model
from support.planted import GUESSED, HOPED, KNOWN, Copying, Hoping, Ignorant, hopeful
from support.text import file_of, folder_of

QUIET = Progress(quiet=True)
LAG = 40


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 documents in which every character comes again 40 characters later."""
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcdefgh .", k=LAG)) * 20 for _ in range(12)]
    return folder_of(tmp_path_factory.mktemp("corpus"), texts)


def run(model: Decoder, corpus: Path, **options: Any) -> Result:
    given = {"beyond": (), "part": "all", "passages": 24, **options}
    return LongContext(source=str(corpus), **given).run(ModelReader(model, Bytes()), None, 0, QUIET)


def test_a_model_that_ignores_the_context_gains_nothing(corpus: Path) -> None:
    result = run(Ignorant(), corpus)
    losses = [entry["loss"]["value"] for entry in result.parts["lengths"]]
    assert result.measure.value == result.measure.low == result.measure.high == 0
    assert losses == [losses[0]] * 5


def test_a_model_that_copies_gains_once_the_source_is_visible(corpus: Path) -> None:
    result = run(Copying(LAG), corpus)
    losses = {entry["length"]: entry["loss"]["value"] for entry in result.parts["lengths"]}
    assert list(losses) == [4, 8, 16, 32, 64]
    assert [losses[length] for length in (4, 8, 16, 32)] == pytest.approx([GUESSED] * 4)
    assert losses[64] == pytest.approx(KNOWN)
    assert result.measure.value == pytest.approx(GUESSED - KNOWN)


def test_beyond_its_context_it_gains_too_and_only_without_a_scaling_that_it_cannot_have(corpus: Path) -> None:
    result = run(Copying(LAG, context=32), corpus, beyond=(2,))
    longer = result.parts["lengths"][-1]
    assert (longer["length"], longer["scaling"]) == (64, "none")
    assert longer["change_from_training_length"]["value"] == pytest.approx(KNOWN - GUESSED)
    assert result.settings["scalings"] == ["none"]


def test_the_mean_loss_up_to_a_position_counts_what_stands_before_it(corpus: Path) -> None:
    (curve,) = run(Copying(LAG), corpus).parts["cumulative"]
    found = {entry["position"]: entry["loss"]["value"] for entry in curve["positions"]}
    # Target 40 of a passage, counted from 1, is the first that repeats a token of it.
    assert found[32] == pytest.approx(GUESSED)
    assert found[64] == pytest.approx((39 * GUESSED + 25 * KNOWN) / 64)


@pytest.mark.parametrize("scaling", ["none", "linear", "yarn"])
def test_every_length_scores_the_same_targets(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[np.ndarray] = []

    def spy(model: Decoder, tokens: np.ndarray, targets: np.ndarray, last: int) -> np.ndarray:
        assert np.array_equal(tokens[:, 1:], targets[:, :-1])
        asked.append(targets[:, -last:])
        return token_nats(model, tokens, targets, last)

    monkeypatch.setattr("diffattn.evals.long_context.token_nats", spy)
    rows = np.random.default_rng(0).integers(0, 40, (3, 97))
    for length in (6, 24, 48, 96):
        same_targets(small_model(), rows, length, 3, scaling)
    assert all(np.array_equal(targets, asked[0]) for targets in asked)


def test_rows_at_a_time_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = small_model(), np.random.default_rng(0).integers(0, 40, (7, 97))
    together = same_targets(model, rows, 96, 3, "yarn"), cumulative(model, rows, [6, 96], "yarn")
    monkeypatch.setattr("diffattn.evals.texts.AT_ONCE", 1)
    alone = same_targets(model, rows, 96, 3, "yarn"), cumulative(model, rows, [6, 96], "yarn")
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)  # float64


def test_a_model_of_bytes_is_read_with_every_scaling_and_seed_and_limit_do_as_they_say(corpus: Path) -> None:
    reader = ModelReader(build(small_config(vocab_size=257, context=16)), Bytes())
    task = LongContext(source=str(corpus), part="all", passages=8)
    result = task.run(reader, 5, 0, QUIET)
    assert result.settings["passages"] == len(result.outcomes) == 5
    assert {(entry["length"], entry["scaling"]) for entry in result.parts["lengths"]} == {
        *((length, "none") for length in (1, 2, 4, 8, 16, 32, 64)),
        *((length, scaling) for length in (32, 64) for scaling in ("linear", "yarn")),
    }
    assert set(result.parts["beside"]) == {
        "loss with 16 tokens",
        *(f"change with {length}, scaling {scaling}" for length in (32, 64) for scaling in ("none", "linear", "yarn")),
    }
    again = task.run(reader, 5, 1, QUIET)
    assert (again.measure, again.parts) == (result.measure, result.parts)
    assert np.mean(list(result.outcomes.values())) == pytest.approx(result.measure.value)


def test_without_a_file_the_standard_library_is_read() -> None:
    reader = ModelReader(build(small_config(vocab_size=257, context=16)), Bytes())
    result = LongContext(passages=6).run(reader, None, 0, QUIET)
    assert result.settings["documents"] == result.settings["passages"] == 6


def test_intervals_cover_the_gain_of_a_planted_model_where_passages_of_a_document_are_alike(tmp_path: Path) -> None:
    """It knows the last 2 of 64 letters, the targets, once it has read 62; 120 repetitions of 16 documents.

    Of 120 intervals of 95 % from 107 to 119 hold the truth with 99 % probability; the seed is fixed.
    """
    draw = np.random.default_rng(0)
    covered = alone = 0
    for _ in range(120):
        source = file_of(tmp_path / "texts.jsonl", hopeful(draw, 16, 65, told=2))
        result = run(Hoping(after=62), source, passages=1000)
        assert result.settings["documents"] == 16 and result.settings["targets of a passage"] == 2
        covered += result.measure.low <= HOPED <= result.measure.high
        each = mean(list(result.outcomes.values()))
        alone += each.low <= HOPED <= each.high
    assert 107 <= covered <= 119
    # Passages of a document are not so many documents.
    assert alone < 0.85 * 120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beyond": (40,)}, "passages of 2,561 tokens are needed, but the longest document has 800"),
        ({"beyond": (1,)}, "2 or more"),
        ({"scalings": ("yarn",)}, "cannot be read with yarn"),
        ({"scalings": ("ntk",)}, "scalings names 'ntk'"),
    ],
)
def test_what_cannot_be_measured_is_refused(corpus: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(Ignorant(), corpus, **options)


def test_empty_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="there is no document"):
        run(Ignorant(), tmp_path)
    with pytest.raises(DataError, match="no file, folder or glob"):
        run(Ignorant(), tmp_path / "nowhere")
    with pytest.raises(ValueError, match="there is no document"):
        passages(Bytes(), [], 4, 1)


def test_passages_come_from_as_many_documents_as_possible_and_begin_where_they_do() -> None:
    texts = [b"0123456789", b"ab", b"klmnopqrst"]
    rows, owners = passages(Bytes(), texts, 3, 4)
    assert [bytes(row.tolist()) for row in rows] == [b"012", b"678", b"klm", b"qrs"]
    assert owners.tolist() == [0, 0, 2, 2]
    assert len(passages(Bytes(), texts, 3, 99)[0]) == 6


def test_only_passages_of_the_same_tokens_have_the_same_names() -> None:
    rows = np.array([[1, 2, 3], [1, 2, 3], [4, 5, 6]])
    assert named(rows) == named(rows.copy()) and len({*named(rows)}) == 3
    assert not {*named(rows)} & {*named(rows[:, :2]), *named(rows + 1)}


def test_a_model_with_a_scaling_of_its_own_is_stretched_by_it_alone() -> None:
    config = ModelConfig(rope_scaling="yarn", rope_factor=2.0)
    assert usable(config, ("none", "linear", "yarn")) == ("none", "yarn")
