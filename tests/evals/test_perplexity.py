"""Held-out loss equals a slow sum over tokens, however they were batched."""

import json
import math
from collections import defaultdict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diffattn.data import Batch
from diffattn.evals.perplexity import evaluate, recall_hits
from diffattn.model.decoder import Decoder
from support.models import random_tokens, small_model

VOCABULARY = 40
TOKEN_BYTES = torch.arange(VOCABULARY) % 5


def batch_of(rows: int, length: int = 12, symbols: int = 3) -> Batch:
    """Few symbols, so that bigrams repeat; two documents a row, one of which ends in the next row; some not scored."""
    text = random_tokens(rows, length + 1, symbols)
    documents = torch.arange(rows)[:, None] + (torch.arange(length) >= 5)
    targets = text[:, 1:].clone()
    targets[:, 4] = -100
    targets[0, :3] = -100
    return Batch(text[:, :-1], targets, documents)


def slowly(model: Decoder, batch: Batch) -> list[tuple[float, int, int, bool, bool, int]]:
    """(nats, target, position, likeliest, recall hit, document) of each scored token, one by one."""
    logits = model(batch.tokens, batch.documents).detach().double()
    rows: list[tuple[float, int, int, bool, bool, int]] = []
    for row, (tokens, targets, documents) in enumerate(zip(*(part.tolist() for part in batch), strict=True)):
        for t, target in enumerate(targets):
            if target == -100:
                continue
            earlier = [(tokens[s], tokens[s + 1]) for s in range(t) if documents[s] == documents[s + 1] == documents[t]]
            nats = -F.log_softmax(logits[row, t], -1)[target].item()
            likeliest = int(logits[row, t].argmax()) == target
            rows.append((nats, target, t, likeliest, (tokens[t], target) in earlier, documents[t]))
    return rows


@pytest.fixture(scope="module")
def model() -> Decoder:
    return small_model("diff_v1")


def test_every_number_equals_the_slow_sum(model: Decoder) -> None:
    batch = batch_of(6)
    rows, found = slowly(model, batch), evaluate(model, [batch], TOKEN_BYTES)
    # token_losses are float32, so 1e-6 relative.
    near = {"rel": 1e-5}
    nats = [row[0] for row in rows]
    assert found.count == len(rows) == 6 * 11 - 3
    assert found.loss == pytest.approx(sum(nats) / len(rows), **near)
    size = sum(int(TOKEN_BYTES[row[1]]) for row in rows)
    assert found.bits_per_byte == pytest.approx(sum(nats) / math.log(2) / size, **near)
    assert found.accuracy == pytest.approx(sum(row[3] for row in rows) / len(rows), rel=1e-12)
    for part, wanted in ((found.recall_hits, True), (found.other_tokens, False)):
        kept = [row[0] for row in rows if row[4] is wanted]
        assert part.count == len(kept) > 5
        assert part.loss == pytest.approx(sum(kept) / len(kept), **near)
    for position, loss in enumerate(found.by_position):
        kept = [row[0] for row in rows if row[2] == position]
        assert loss == (pytest.approx(sum(kept) / len(kept), **near) if kept else None)
    documents: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        documents[row[5]].append(row[0])
    expected = [[sum(documents[name]), len(documents[name])] for name in sorted(documents)]
    assert [count for _, count in found.documents] == [count for _, count in expected]
    np.testing.assert_allclose(found.documents, expected, rtol=1e-5)


def test_how_the_tokens_are_batched_changes_nothing(model: Decoder) -> None:
    batch = batch_of(6)
    whole = evaluate(model, [batch], TOKEN_BYTES).to_dict()
    for sizes in ([1] * 6, [4, 2], [5, 1]):
        split = [Batch(*parts) for parts in zip(*(part.split(sizes) for part in batch), strict=True)]
        found = evaluate(model, split, TOKEN_BYTES).to_dict()
        assert found["documents"] == [[pytest.approx(s, rel=1e-6), n] for s, n in whole["documents"]]
        assert {name: found[name] for name in ("count", "accuracy")} == {
            name: whole[name] for name in ("count", "accuracy")
        }
        # A product of other shape may round in another order: float32's 6e-8.
        for name in ("loss", "bits_per_byte"):
            assert found[name] == pytest.approx(whole[name], rel=1e-6)
        for name in ("recall_hits", "other_tokens"):
            assert found[name] == {"loss": pytest.approx(whole[name]["loss"], rel=1e-6), "count": whole[name]["count"]}


def test_batches_may_differ_in_length(model: Decoder) -> None:
    found = evaluate(model, [batch_of(2, 12), batch_of(1, 9)])
    assert found.count == (2 * 11 - 3) + (8 - 3)
    assert len(found.by_position) == 12
    assert found.bits_per_byte is None


def test_result_is_json_and_the_model_is_left_as_it_was(model: Decoder) -> None:
    model.train()
    found = evaluate(model, [batch_of(2)], TOKEN_BYTES)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()


def test_nothing_to_score_is_refused(model: Decoder) -> None:
    batch = batch_of(2)
    for batches in ([], [batch._replace(targets=torch.full_like(batch.targets, -100))]):
        with pytest.raises(ValueError, match="nothing to evaluate"):
            evaluate(model, batches)


def as_batch(tokens: list[int], targets: list[int], documents: list[int]) -> Batch:
    def row(values: list[int]) -> Tensor:
        return torch.tensor([values])

    return Batch(row(tokens), row(targets), row(documents))


def test_recall_hits_are_repeated_bigrams_of_the_same_document() -> None:
    #                 a  b  a  b  a  b    at 2 "a b" repeats the pair at 0; at 3 "b a" repeats the one at 1
    hits = recall_hits(as_batch([1, 2, 1, 2, 1], [2, 1, 2, 1, 9], [0, 0, 0, 0, 0]))
    assert hits.tolist() == [[False, False, True, True, False]]
    # The pair began in another document, or is completed across the border.
    assert not recall_hits(as_batch([1, 2, 1, 2], [2, 1, 2, 3], [0, 0, 1, 1])).any()
    assert not recall_hits(as_batch([1, 2, 1], [2, 1, 2], [0, 1, 1])).any()
    # "a a a": the pair that begins one token earlier is complete when the last target is asked for.
    assert recall_hits(as_batch([1, 1], [1, 1], [0, 0])).tolist() == [[False, True]]
    # Not scored is no hit; a single token has no pair before it.
    assert not recall_hits(as_batch([1, 1], [1, -100], [0, 0])).any()
    assert not recall_hits(as_batch([1], [1], [0])).any()


def test_a_hit_in_one_row_is_none_in_another() -> None:
    batch = Batch(torch.tensor([[1, 2], [1, 3]]), torch.tensor([[2, 1], [2, 4]]), torch.zeros(2, 2, dtype=torch.int64))
    assert not recall_hits(batch).any()
