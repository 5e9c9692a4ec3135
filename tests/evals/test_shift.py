"""Other text, noise and a short fine-tuning: planted models show what they must and no more."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffattn.data import DataError, TextData
from diffattn.data.prepare import split_of
from diffattn.data.sources import open_source
from diffattn.data.tokenizer import Bytes, Subwords, train_bpe
from diffattn.evals.base import Progress, Result, paired
from diffattn.evals.intervals import difference, mean
from diffattn.evals.noise import PRINTABLE, corrupted, same_tokens
from diffattn.evals.pieces import Piece, chosen, cut, judge
from diffattn.evals.reader import ModelReader
from diffattn.evals.shift import Shift, noise_of
from diffattn.evals.texts import docstrings, documents
from diffattn.evals.tuning import Tuning, tuned
from diffattn.model.decoder import Decoder, build
from support.models import small_config
from support.planted import GUESSED, KNOWN, VOCABULARY, Copying, Ignorant
from support.text import WORDS, folder_of

QUIET = Progress(quiet=True)
LAG = 20


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """300 documents each: characters that come again 20 characters later, the same from another alphabet, and words."""
    draw, place = random.Random(0), tmp_path_factory.mktemp("corpora")
    texts = {
        "lagged": ["".join(draw.choices("abcdefgh .", k=LAG)) * 7 for _ in range(300)],
        "other": ["".join(draw.choices("qrstuvwxyz", k=LAG)) * 7 for _ in range(300)],
        "words": [" ".join(draw.choices(WORDS, k=30)) for _ in range(300)],
    }
    return {name: str(folder_of(place / name, some)) for name, some in texts.items()}


def run(model: Decoder, corpora: dict[str, str], away: str = "other", seed: int = 0, **options: Any) -> Result:
    given = {"pieces": 16, "tuning": Tuning(steps=0), **options}
    task = Shift(home=corpora["lagged"], away=(corpora[away],), **given)
    return task.run(ModelReader(model, Bytes()), None, seed, QUIET)


def small() -> Decoder:
    return build(small_config(vocab_size=VOCABULARY, context=32))


def test_what_copies_does_so_away_from_home_too_and_what_knows_letters_does_not(corpora: dict[str, str]) -> None:
    assert run(Copying(LAG), corpora).measure.value == pytest.approx(0, abs=1e-9)
    # Its probability of a byte is proportional to the byte's number + 1: the later letters are the likelier ones.
    gap = run(Ignorant(), corpora).measure
    assert gap.high < 0
    assert gap.value == pytest.approx(math.log2(98 / 120), abs=0.3)


def test_two_models_are_paired_piece_by_piece_of_both_texts(corpora: dict[str, str]) -> None:
    one, other = run(Copying(LAG), corpora), run(Ignorant(), corpora)
    for found in (one, other):
        gap = np.mean(list(found.outcomes.values())) - np.mean(list(found.against.values()))
        assert gap == pytest.approx(found.measure.value)
        assert found.clusters.keys() == found.outcomes.keys() | found.against.keys()
        assert len(found.outcomes) == len(found.against) == 16
    change, _ = paired(one, other)
    assert change.value == pytest.approx(other.measure.value - one.measure.value)
    assert change.low < change.value < change.high < 0
    assert paired(one, one)[0].value == 0
    with pytest.raises(ValueError, match="not asked the same"):
        paired(one, run(Ignorant(), corpora, away="words"))


def test_noise_adds_nothing_where_the_context_is_not_used(corpora: dict[str, str]) -> None:
    noise = run(Ignorant(), corpora).parts["noise"]
    assert (noise["added"]["value"], noise["added"]["low"], noise["added"]["high"]) == (0, 0, 0)
    assert noise["replaced"] > 0


def test_noise_adds_what_a_wrong_copy_costs_on_the_tokens_it_left_alone() -> None:
    pieces = [Piece(("abcdefgh .qrstuvwxyz" * 3).encode(), number) for number in range(40)]
    reader, share = ModelReader(Copying(LAG), Bytes()), 0.05
    noise = noise_of(reader, pieces, share, seed=3)
    drawn = [corrupted(piece.text, share, 3 * 2**32 + number)[1] for number, piece in enumerate(pieces)]
    misled = sum(int((~changed[LAG:] & changed[:-LAG]).sum()) for changed in drawn)
    left = sum(int((~changed[1:]).sum()) for changed in drawn)
    surprise = -math.log(0.1 / VOCABULARY)
    assert noise["added"]["n"] == left
    assert noise["added"]["value"] == pytest.approx(misled * (surprise - KNOWN) / left)
    assert noise["untouched_clean"]["value"] == pytest.approx(
        sum((~changed[1:LAG]).sum() * GUESSED + (~changed[LAG:]).sum() * KNOWN for changed in drawn) / left
    )


def test_about_so_many_printable_characters_become_others_and_the_rest_stays() -> None:
    text = ("naïve\tmodel 猫\n" * 1000).encode()
    noisy, changed = corrupted(text, 0.05, 0)
    before, after = (np.frombuffer(some, dtype=np.uint8) for some in (text, noisy))
    printable = (before >= PRINTABLE[0]) & (before <= PRINTABLE[1])
    assert np.array_equal(before != after, changed)
    assert not changed[~printable].any()
    assert ((after[changed] >= PRINTABLE[0]) & (after[changed] <= PRINTABLE[1])).all()
    # 4 standard errors of a share of 10,000.
    assert changed[printable].mean() == pytest.approx(0.05, abs=0.009)
    assert noisy.decode().count("\n") == 1000
    assert corrupted(text, 0.05, 0)[0] == noisy != corrupted(text, 0.05, 1)[0]
    assert corrupted(text, 0.0, 0)[0] == text


@pytest.fixture(scope="module")
def subwords(tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    texts = [" ".join(random.Random(n).choices(WORDS, k=100)).encode() for n in range(20)]
    return train_bpe(texts, 300, tmp_path_factory.mktemp("bpe") / "tokenizer.json")


def test_subwords_are_the_same_where_they_spell_the_same_untouched_bytes(subwords: Subwords) -> None:
    clean = b"the model waits while the page reads"
    noisy, changed = corrupted(clean, 0.1, 1)
    before, after = subwords.encode([clean, noisy])
    one, other = same_tokens(subwords, (clean, before), (noisy, after), changed)
    assert changed.any()
    assert 0 < len(one) < len(before)
    assert before[one].tolist() == after[other].tolist()
    ends = np.cumsum([len(subwords.pieces[i]) for i in after])
    for place in other:
        assert not changed[ends[place] - len(subwords.pieces[after[place]]) : ends[place]].any()
    whole = same_tokens(subwords, (clean, before), (clean, before), np.zeros(len(clean), dtype=bool))
    assert whole[0].tolist() == whole[1].tolist() == list(range(len(before)))


def test_a_tokenizer_that_changes_text_is_refused() -> None:
    with pytest.raises(ValueError, match="this tokenizer changes text"):
        same_tokens(Bytes(), (b"abc", np.array([97])), (b"abc", np.array([97])), np.zeros(3, dtype=bool))


def test_fine_tuning_learns_the_new_text_and_tells_what_it_forgets(corpora: dict[str, str]) -> None:
    tuning = Tuning(steps=15, learning_rate=1e-2)
    home = [np.frombuffer(text[:33], dtype=np.uint8) for text in documents(corpora["lagged"], "train")]
    model = tuned(small(), home, tuning, 0)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    result = run(model, corpora, tuning=tuning)
    found = result.parts["tuning"]
    assert found["learned"]["low"] > 1
    assert found["forgotten"]["low"] > 0
    before, after = (result.parts["texts"][corpora["lagged"]], found["after"][corpora["lagged"]])
    assert found["forgotten"]["value"] == pytest.approx(after["loss"]["value"] - before["loss"]["value"])
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert run(model, corpora, tuning=tuning).parts == result.parts


def test_rounding_of_a_narrow_model_is_nothing_that_was_learned(corpora: dict[str, str]) -> None:
    found = run(small().bfloat16(), corpora, pieces=4, tuning=Tuning(steps=1, batch_size=1, learning_rate=1e-12)).parts
    assert found["tuning"]["learned"]["value"] == pytest.approx(0, abs=1e-7)
    assert found["tuning"]["forgotten"]["value"] == pytest.approx(0, abs=1e-7)


def test_fine_tuning_reads_the_training_split_and_judges_the_held_out_one(
    corpora: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []

    def spy(model: Decoder, ids: list[np.ndarray], tuning: Tuning, seed: int) -> Decoder:
        read.extend(bytes(one.tolist()) for one in ids)
        return tuned(model, ids, tuning, seed)

    monkeypatch.setattr("diffattn.evals.shift.tuned", spy)
    run(small(), corpora, tuning=Tuning(steps=2, batch_size=3))
    trained = b"\n".join(documents(corpora["other"], "train"))
    assert len(read) == 6
    assert all(piece in trained for piece in read)


def test_rows_at_a_time_and_padding_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(small_config(vocab_size=VOCABULARY, context=32), dtype=torch.float64)
    pieces = [Piece(b"abcdefghijklmnopqrstuvwxyz0123456789"[: 9 + 5 * n], n) for n in range(6)]
    together = judge(model, Bytes(), pieces)
    alone = np.concatenate([judge(model, Bytes(), [piece]).nats for piece in pieces])
    np.testing.assert_allclose(together.nats, alone, rtol=1e-10)
    monkeypatch.setattr("diffattn.evals.texts.AT_ONCE", 1)
    np.testing.assert_allclose(judge(model, Bytes(), pieces).nats, alone, rtol=1e-10)


def test_bits_per_byte_weigh_tokens_by_their_bytes(subwords: Subwords) -> None:
    model = build(small_config(vocab_size=300, context=32))
    found = judge(model, subwords, [Piece(b"the model waits", 0), Piece(b"a page reads", 1)])
    expected = found.nats.sum() / math.log(2) / found.sizes.sum()
    assert found.bits_per_byte().value == pytest.approx(expected)
    assert found.bits_per_byte().n == found.sizes.sum()


def test_pieces_fit_the_context_and_come_from_as_many_documents_as_possible() -> None:
    texts = [("naïve 猫 " * 40).encode(), b"short", b"x" * 100]
    pieces = chosen(cut(Bytes(), texts, 31), 4, "texts")
    assert {piece.document for piece in pieces} == {0, 2}
    assert all(16 <= len(piece.text) <= 40 for piece in pieces)
    assert [piece.text for piece in pieces if piece.document == 2] == [b"x" * 32] * 2


def test_prose_of_the_library_is_that_of_held_out_code_and_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    code = b'"""About it."""\nimport os\n\n\ndef f():\n    """Do it."""\n    return os\n'
    assert docstrings(code) == b"About it.\n\nDo it."
    assert docstrings(b'topics = {"a": "First.", "b": "Second."}') == b"First.\n\nSecond."
    assert docstrings(b"print 'old'") == b""
    held_out = [text for text in open_source(TextData()).documents() if split_of(text) == "dev"]
    expected = [text for text in map(docstrings, held_out) if text]
    assert [*documents("prose", "dev")][: len(expected)] == expected


def test_intervals_of_a_gap_cover_it() -> None:
    """500 draws of two texts of 40 and 60 documents; 4 standard errors of a share of 95 % are 3.9 points."""
    draw, covered = np.random.default_rng(0), 0
    for _ in range(500):
        sides = []
        for count, truth in ((40, 1.0), (30, 0.5)):
            owners = np.repeat(np.arange(count), draw.integers(2, 9, count))
            nats = truth + 0.3 * draw.normal(size=count)[owners] + draw.normal(size=len(owners))
            sides.append(mean(nats, owners.tolist()))
        gap = difference(*sides)
        covered += gap.low <= 0.5 <= gap.high
    assert 0.91 <= covered / 500 <= 0.99


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": 1.5}, "noise is 1.5"),
        ({"away": "lagged"}, "other than home"),
        ({"tuning": Tuning(steps=1, batch_size=0)}, "batch_size at least 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(corpora: dict[str, str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(Ignorant(), corpora, **options)


def test_empty_and_absent_texts_are_refused(corpora: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt: there is no document"):
        run(Ignorant(), {**corpora, "other": str(tmp_path / "empty.txt")})
    with pytest.raises(DataError, match="no file, folder or glob"):
        run(Ignorant(), {**corpora, "other": str(tmp_path / "nowhere")})
    with pytest.raises(ValueError, match="no text to fine-tune on"):
        tuned(small(), [], Tuning(), 0)
