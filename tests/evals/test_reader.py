"""A decoder reads and writes text: no padding, batch or shared prompt changes what it says."""

from pathlib import Path

import numpy as np
import pytest
import torch

from diffattn.data.tokenizer import Bytes, train_bpe
from diffattn.evals.opening import identify, open_reader
from diffattn.evals.reader import GREEDY, ModelReader, Sampling, until
from diffattn.hub.convert import save
from diffattn.model.decoder import Decoder
from support.models import VARIANTS, small_model

PAIRS = [("a long beginning ", "one"), ("a long beginning ", "another end"), ("", "alone"), ("b", "x"), ("a long", "y")]


def model(variant: str = "diff_v1", **fields) -> Decoder:
    return small_model(variant, dtype=torch.float64, vocab_size=257, context=64, **fields)


def slowly(decoder: Decoder, prompt: str, continuation: str) -> float:
    """Log-probability of a continuation, one token after the other."""
    # Nothing stands before a text of ours; where there is no prompt, end-of-text does.
    ids, total = list(prompt.encode()) or [256], 0.0
    for byte in continuation.encode():
        logits = decoder(torch.tensor([ids]))[0, -1].detach()
        total += float(logits.log_softmax(-1)[byte])
        ids.append(byte)
    return total


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shift", [False, True])
def test_scores_are_sums_of_next_token_log_probabilities(variant: str, shift: bool) -> None:
    decoder = model(variant, token_shift=shift)
    found = ModelReader(decoder, Bytes()).score(PAIRS)
    for (prompt, continuation), scored in zip(PAIRS, found, strict=True):
        assert scored.total == pytest.approx(slowly(decoder, prompt, continuation), abs=1e-10)
        assert scored.total == pytest.approx(scored.tokens.sum(), abs=1e-12)
        assert (scored.unlikeliest <= scored.tokens).all() and (scored.tokens <= scored.likeliest).all()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_batch_size_changes_no_score_and_no_text(size: int) -> None:
    decoder = model()
    one, other = ModelReader(decoder, Bytes(), batch_size=16), ModelReader(decoder, Bytes(), batch_size=size)
    for a, b in zip(one.score(PAIRS), other.score(PAIRS), strict=True):
        np.testing.assert_allclose(a.tokens, b.tokens, atol=1e-12)
    prompts = [prompt for prompt, _ in PAIRS]
    for how in (GREEDY, Sampling(temperature=1.0, seed=3), Sampling(temperature=0.7, min_p=0.1)):
        assert one.write(prompts, 8, (), how) == other.write(prompts, 8, (), how)


def test_another_seed_writes_another_text() -> None:
    reader = ModelReader(model(), Bytes())
    texts = [reader.write(["abc"], 8, (), Sampling(temperature=1.0, seed=seed)) for seed in (0, 1, 0)]
    # Two texts of 8 of some 257 bytes are the same by chance once in far more than a million.
    assert texts[0] == texts[2] != texts[1]


def test_greedy_says_whether_the_model_would_write_it() -> None:
    reader = ModelReader(model(), Bytes())
    written = reader.write(["abc"], 1, (), GREEDY)[0]
    # The first byte of most texts that an untrained model writes is no character by itself.
    likeliest = int(reader.model(torch.tensor([list(b"abc")]))[0, -1].argmax())
    assert reader.score_ids([(b"abc", [likeliest])])[0].greedy
    assert not reader.score_ids([(b"abc", [(likeliest + 1) % 256])])[0].greedy
    assert len(written) <= 1


def test_a_token_across_the_border_is_judged_whole(tmp_path: Path) -> None:
    # Trained on this text, "ab" is one token: a prompt that ends in "a" does not end at a token's border.
    tokenizer = train_bpe([b"ab ab ab ab cab cab"], 259, tmp_path / "tokenizer.json")
    decoder = small_model("softmax", dtype=torch.float64, vocab_size=259, context=64)
    reader = ModelReader(decoder, tokenizer)
    first, ab = reader.encode("c"), reader.encode("cab")
    assert ab[0] == first[0] and len(ab) == 2
    assert reader.score([("ca", "b")])[0].total == pytest.approx(reader.score_ids([(ab[:1], ab[1:])])[0].total)


def test_what_does_not_fit_is_refused() -> None:
    reader = ModelReader(model(), Bytes())
    with pytest.raises(ValueError, match="context of 64"):
        reader.score([("x" * 60, "y" * 10)])
    with pytest.raises(ValueError, match="empty"):
        reader.score([("x", "")])
    with pytest.raises(ValueError, match="too few for text"):
        ModelReader(small_model(), Bytes())


def test_a_model_whose_tokenizer_is_lost_does_not_read_bytes(tmp_path: Path) -> None:
    save(small_model("softmax", vocab_size=600, context=64), tmp_path / "model")
    with pytest.raises(ValueError, match=r"has no tokenizer\.json, and its model has 600 token ids"):
        open_reader(tmp_path / "model")


@pytest.mark.parametrize("ids", [40, 300])
def test_a_model_of_a_synthetic_task_says_what_can_be_asked_of_it(tmp_path: Path, ids: int) -> None:
    """Whether or not it has enough ids for bytes."""
    save(small_model("softmax", vocab_size=ids, context=64), tmp_path / "model")
    (tmp_path / "config.json").write_text('{"data": {"kind": "synthetic", "task": "recall"}}')
    with pytest.raises(ValueError, match=r"trained on recall, .* ask --tasks loss maps outliers"):
        open_reader(tmp_path / "model")
    (tmp_path / "config.json").write_text("[]")
    if ids < 257:
        with pytest.raises(ValueError, match=r"40 token ids, too few for text .* ask --tasks loss maps outliers"):
            open_reader(tmp_path / "model")


def test_texts_end_before_the_first_stop() -> None:
    assert until("one two\nthree", ("\n", " two")) == "one"
    assert until("one", ()) == "one"


def test_a_folder_is_identified_by_what_is_in_it(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        save(model(seed=seed), tmp_path / name)
    a, b, c = (identify(tmp_path / name) for name in "abc")
    assert a == b != c
    assert open_reader(tmp_path / "a").identity == a
