"""The bigram table's loss is what its formula says, on the targets that a model is scored on."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from diffattn.data import SyntheticData, TextData, open_data
from diffattn.data.bigram import STRENGTHS, bigram_loss
from diffattn.data.corpus import Corpus
from support.text import documents, folder_of


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    place = tmp_path_factory.mktemp("bigram")
    config = TextData(source=str(folder_of(place / "text", documents(220, words=20))), tokenizer="bpe", vocab_size=300)
    data = open_data(config, context=32, batch_size=4, seed=0, folder=place / "cache")
    assert isinstance(data, Corpus)
    return data


def by_hand(data: Corpus, split: str, strength: float) -> float:
    """The formula with dictionaries, document by document."""
    streams = {name: np.fromfile(data.folder / f"{name}.tokens", dtype="<u2").tolist() for name in ("train", split)}
    pairs: Counter[tuple[int, int]] = Counter()
    for a, b in zip(streams["train"], streams["train"][1:], strict=False):
        if a != data.tokenizer.end:
            pairs[a, b] += 1
    before, after = Counter[int](), Counter[int]()
    for (a, b), count in pairs.items():
        before[a] += count
        after[b] += count
    losses = []
    for a, b in zip(streams[split], streams[split][1:], strict=False):
        if a != data.tokenizer.end:
            unigram = (after[b] + 0.1) / (sum(after.values()) + 0.1 * data.vocab_size)
            losses.append(-math.log((pairs[a, b] + strength * unigram) / (before[a] + strength)))
    return sum(losses) / len(losses)


def test_the_loss_is_the_formula_s_with_the_best_smoothing_of_dev(data: Corpus) -> None:
    best = min(STRENGTHS, key=lambda strength: by_hand(data, "dev", strength))
    # float64 sums of a few thousand terms, in another order
    assert bigram_loss(data, "dev") == pytest.approx(by_hand(data, "dev", best), rel=1e-12)
    assert bigram_loss(data, "test") == pytest.approx(by_hand(data, "test", best), rel=1e-12)


def test_it_is_finite_for_tokens_that_training_never_saw(tmp_path: Path) -> None:
    texts = [f"{number} {chr(0x4E00 + number)}" for number in range(400)]
    data = open_data(
        TextData(source=str(folder_of(tmp_path / "text", texts))), context=16, batch_size=2, seed=0, folder=tmp_path
    )
    loss = bigram_loss(data, "test")
    assert loss is not None and 0 < loss < math.log(257)


def test_synthetic_tasks_have_none() -> None:
    data = open_data(SyntheticData(), context=64, batch_size=2, seed=0)
    assert bigram_loss(data, "dev") is None
