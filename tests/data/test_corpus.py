"""Windows of text: pure in the step, complete in an epoch, scored inside documents only."""

from pathlib import Path

import numpy as np
import pytest
import torch

from diffattn.data import Batch, Data, DataError, TextData, open_data
from diffattn.data.corpus import Corpus
from support.text import documents, folder_of

CONTEXT = 48


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("corpus") / "text", documents(220, words=24))


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def config(request: pytest.FixtureRequest, place: Path) -> TextData:
    return TextData(source=str(place), tokenizer=request.param, vocab_size=300)


def opened(config: TextData, place: Path, *, seed: int = 0, batch_size: int = 4, context: int = CONTEXT) -> Corpus:
    data = open_data(config, context=context, batch_size=batch_size, seed=seed, folder=place.parent / "cache")
    assert isinstance(data, Corpus) and isinstance(data, Data)
    return data


def same(one: Batch, two: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_batch_is_a_pure_function_of_the_step(config: TextData, place: Path) -> None:
    data, again = opened(config, place), opened(config, place)
    later_first = [again.batch(step) for step in (70, 3, 0)]
    assert all(same(data.batch(step), batch) for step, batch in zip((70, 3, 0), later_first, strict=True))
    assert data.batch(0).tokens.shape == (4, CONTEXT)
    assert all(part.dtype == torch.int64 for part in data.batch(0))


def test_batch_size_only_cuts_the_same_sequence_of_windows(config: TextData, place: Path) -> None:
    small, large = opened(config, place, batch_size=4), opened(config, place, batch_size=8)
    joined = torch.cat([small.batch(10).tokens, small.batch(11).tokens])
    assert torch.equal(joined, large.batch(5).tokens)


def test_seeds_shuffle_differently_and_so_do_epochs(config: TextData, place: Path) -> None:
    data, other = opened(config, place, batch_size=1), opened(config, place, seed=1, batch_size=1)
    windows = (data.train_tokens - 1) // CONTEXT
    first = [data.batch(step).tokens for step in range(12)]
    assert not torch.equal(torch.cat(first), torch.cat([other.batch(step).tokens for step in range(12)]))
    assert not torch.equal(torch.cat(first), torch.cat([data.batch(windows + step).tokens for step in range(12)]))


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_sees_every_window_once(config: TextData, place: Path, epoch: int) -> None:
    data = opened(config, place, batch_size=1)
    windows = (data.train_tokens - 1) // CONTEXT
    seen = [tuple(data.batch(epoch * windows + step).tokens[0].tolist()) for step in range(windows)]
    stream = data.train_stream(windows * CONTEXT).reshape(windows, CONTEXT)
    assert sorted(seen) == sorted(tuple(row) for row in stream.tolist())


def test_batches_run_over_the_end_of_an_epoch(config: TextData, place: Path) -> None:
    one, three = opened(config, place, batch_size=1), opened(config, place, batch_size=3)
    windows = (one.train_tokens - 1) // CONTEXT
    step = windows // 3  # its rows reach into the second epoch, or begin it
    assert torch.equal(three.batch(step).tokens, torch.cat([one.batch(3 * step + i).tokens for i in range(3)]))


def test_targets_are_the_next_tokens_of_the_same_document(config: TextData, place: Path) -> None:
    data = opened(config, place)
    for step in range(5):
        tokens, targets, ids = data.batch(step)
        after_end = tokens == data.tokenizer.end
        assert torch.equal(targets[:, :-1] == -100, after_end[:, :-1])
        assert torch.equal(ids[:, 1:] - ids[:, :-1], after_end[:, :-1].long())
        inside = (targets != -100)[:, :-1]
        assert torch.equal(targets[:, :-1][inside], tokens[:, 1:][inside])


@pytest.mark.parametrize("split", ["dev", "test"])
def test_evaluation_covers_every_target_once_whatever_the_run(config: TextData, place: Path, split) -> None:
    data = opened(config, place)
    batches = list(data.evaluation(split))
    other = list(opened(config, place, seed=5, batch_size=3).evaluation(split))
    for field in Batch._fields:
        parts = [torch.cat([getattr(batch, field) for batch in run]) for run in (batches, other)]
        assert torch.equal(*parts)
    targets = torch.cat([batch.targets for batch in batches])
    ids = torch.cat([batch.documents for batch in batches])
    section = data.manifest["splits"][split]
    scored = targets != -100
    # Everything but the first token of each document, which nothing announces.
    assert int(scored.sum()) == section["tokens"] - section["documents"]
    assert ids.unique().tolist() == list(range(section["documents"]))
    stream = np.fromfile(data.folder / f"{split}.tokens", dtype="<u2")
    starts = np.fromfile(data.folder / f"{split}.starts", dtype="<u8")
    assert targets[scored].tolist() == np.delete(stream, starts).tolist()


def test_a_part_of_the_evaluation_is_spread_over_the_split(config: TextData, place: Path) -> None:
    data = opened(config, place)
    batches = list(data.evaluation("dev", tokens=5 * CONTEXT))
    ids = torch.cat([batch.documents for batch in batches])
    assert ids.shape == (5, CONTEXT)
    assert int(ids.min()) == 0 and int(ids.max()) == data.manifest["splits"]["dev"]["documents"] - 1


def test_token_bytes_add_up_to_the_text(config: TextData, place: Path) -> None:
    data = opened(config, place)
    assert data.token_bytes is not None and len(data.token_bytes) == data.vocab_size
    stream = torch.from_numpy(np.fromfile(data.folder / "dev.tokens", dtype="<u2").astype(np.int64))
    assert int(data.token_bytes[stream].sum()) == data.manifest["splits"]["dev"]["bytes"]


def test_the_sentence_is_a_short_held_out_passage(config: TextData, place: Path) -> None:
    data = opened(config, place)
    ids = data.sentence()
    assert ids.shape == (32,) and torch.equal(ids, opened(config, place, seed=3).sentence())
    text = data.decode(ids)
    held_out = data.decode(np.fromfile(data.folder / "dev.tokens", dtype="<u2").tolist())
    assert text in held_out and "<|endoftext|>" not in text
    assert "".join(data.labels(ids)).replace("↵", "\n") == text or "�" in "".join(data.labels(ids))


def test_labels_are_printable() -> None:
    data = Corpus.__new__(Corpus)
    from diffattn.data.tokenizer import Bytes

    data.tokenizer = Bytes()
    assert data.labels([97, 10, 9, 256, 0xC3]) == ["a", "↵", "⇥", "<|endoftext|>", "�"]


def test_a_corpus_shorter_than_one_batch_says_what_to_lower(config: TextData, place: Path) -> None:
    with pytest.raises(DataError, match=r"has [\d,]+ tokens, one batch of 64 x 4096 needs 262,145: give more text, or"):
        opened(config, place, batch_size=64, context=4096)


def test_the_fingerprint_tells_texts_and_tokenizers_apart(place: Path, tmp_path: Path) -> None:
    bytes_ = TextData(source=str(place))
    bpe = TextData(source=str(place), tokenizer="bpe", vocab_size=300)
    other = TextData(source=str(folder_of(tmp_path / "other", documents(220, seed=9))))
    prints = [opened(config, place).fingerprint for config in (bytes_, bpe, other)]
    assert set(prints[0]) == {"source", "tokenizer", "vocab_size"}
    assert prints[0]["source"] == prints[1]["source"] != prints[2]["source"]
    assert prints[0]["tokenizer"] == prints[2]["tokenizer"] != prints[1]["tokenizer"]
    assert (prints[0]["vocab_size"], prints[1]["vocab_size"]) == (257, 300)


def test_outside_stories_and_an_outside_tokenizer_work(shared_data: Path, tmp_path: Path) -> None:
    stories = str(shared_data / "tinystories")
    llama = str(shared_data / "stories260K" / "tokenizer.json")
    for tokenizer, vocab_size, caption in (
        ("bytes", 257, "tinystories, 2.1 MB, bytes"),
        (llama, 512, "tinystories, 2.1 MB, tokenizer.json, 512 tokens"),
    ):
        config = TextData(source=stories, tokenizer=tokenizer)
        data = open_data(config, context=64, batch_size=8, seed=0, folder=tmp_path)
        assert isinstance(data, Corpus)
        assert data.vocab_size == vocab_size and data.describe() == caption
        assert data.manifest["documents"] > 2000  # stories, not one file
        assert data.token_bytes is not None
        assert "<|endoftext|>" not in data.decode(data.sentence())


def test_captions_name_source_size_and_tokenizer(place: Path) -> None:
    assert opened(TextData(source=str(place)), place).describe().startswith("text, 220 files, ")
    bpe = TextData(source=str(place), tokenizer="bpe", vocab_size=300)
    assert opened(bpe, place).describe().endswith(" kB, byte-level BPE, 300 tokens")
