"""Encoding loses nothing, training repeats itself, and the bytes of every id are counted right."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffattn.data import DataError
from diffattn.data.tokenizer import END, Bytes, Subwords, paragraphs, train_bpe
from support.text import documents


@pytest.fixture(scope="module")
def texts() -> list[bytes]:
    return [text.encode() for text in documents(80)]


@pytest.fixture(scope="module")
def bpe(texts: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    return train_bpe(texts, 320, tmp_path_factory.mktemp("bpe") / "tokenizer.json")


def test_training_twice_gives_the_same_file(bpe: Subwords, texts: list[bytes], tmp_path: Path) -> None:
    assert train_bpe(texts, 320, tmp_path / "again.json").text == bpe.text


@settings(deadline=None)  # a loaded machine is no failure
@given(st.text())
def test_any_text_survives_the_round_trip(bpe: Subwords, text: str) -> None:
    for tokenizer in (bpe, Bytes()):
        (ids,) = tokenizer.encode([text.encode()])
        assert tokenizer.decode(ids.tolist()) == text
        assert sum(len(tokenizer.pieces[i]) for i in ids) == len(text.encode())


def test_real_text_survives_the_round_trip(bpe: Subwords) -> None:
    text = Path(json.__file__).read_text(encoding="utf-8")
    (ids,) = bpe.encode([text.encode()])
    assert bpe.decode(ids.tolist()) == text
    assert len(ids) < len(text.encode())


def test_text_never_produces_end_of_text(bpe: Subwords) -> None:
    text = f"before {END} after"
    for tokenizer in (bpe, Bytes()):
        (ids,) = tokenizer.encode([text.encode()])
        assert tokenizer.end not in ids.tolist()
        assert tokenizer.decode(ids.tolist()) == text


def test_end_of_text_stands_for_no_bytes(bpe: Subwords) -> None:
    for tokenizer in (bpe, Bytes()):
        assert tokenizer.pieces[tokenizer.end] == b""
        assert len(tokenizer.pieces) == tokenizer.vocab_size
        assert sum(not piece for piece in tokenizer.pieces) == 1
        assert tokenizer.decode([tokenizer.end]) == END


def test_documents_are_encoded_one_by_one(bpe: Subwords, texts: list[bytes]) -> None:
    together = bpe.encode(texts[:5])
    for text, ids in zip(texts[:5], together, strict=True):
        assert bpe.encode([text])[0].tolist() == ids.tolist()


def test_paragraphs_lose_nothing() -> None:
    text = "one\n\ntwo\n\n\n\n   indented\n\nthree" + "x" * 250_000
    assert "".join(paragraphs(text)) == text
    assert paragraphs(text)[:2] == ["one\n\n", "two\n\n\n\n   indented\n\n"]
    assert max(map(len, paragraphs(text))) == 100_000


def test_a_vocabulary_that_the_text_cannot_fill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"supports a vocabulary of 2\d\d, not of 4096: lower --data\.vocab-size"):
        train_bpe([b"one two one two"], 4096, tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match="at least 257 ids"):
        train_bpe([b"one two"], 256, tmp_path / "tokenizer.json")


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'no tokenizer at .*bqe; expected "bytes", "bpe" or the path'):
        Subwords(tmp_path / "bqe")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match=r"bad\.json is not a tokenizer\.json"):
        Subwords(tmp_path / "bad.json")


def test_a_tokenizer_without_end_of_text_is_refused(bpe: Subwords, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(bpe.text.replace("endoftext", "other"))
    with pytest.raises(DataError, match="has no end-of-text token"):
        Subwords(tmp_path / "t.json")


def test_a_sentencepiece_tokenizer_counts_its_bytes(shared_data: Path) -> None:
    llama = Subwords(shared_data / "stories260K" / "tokenizer.json")
    text = "Once upon a time, there was a naïve 猫."
    (ids,) = llama.encode([text.encode()])
    assert llama.decode(ids.tolist()) == text
    assert sum(len(llama.pieces[i]) for i in ids) == len(text.encode()) + 1  # the space it puts in front
