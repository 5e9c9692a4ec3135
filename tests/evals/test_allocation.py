"""Where maps put their mass, against sums entry by entry over the operators' own maps."""

import functools
import json
import math
from typing import Literal

import numpy as np
import pytest
import torch

from diffattn.data import SyntheticData, open_data
from diffattn.data.base import NOT_SCORED, Batch
from diffattn.evals.allocation import EVERY, some_rows
from diffattn.evals.inside import DISTANCES, Inside, MapInside
from diffattn.evals.instruments import look_inside
from diffattn.evals.seen import answer_keys
from diffattn.variants import names
from support.inside import Maps, maps_of, recall_batch, stirred_model, text_batch

CLOSE = {"rel": 1e-6, "abs": 1e-9}
"""Float64 sums in another order."""


@functools.lru_cache
def measured(answers: bool = False) -> tuple[Inside, list[Maps]]:
    model, batch = stirred_model("diff_v1"), recall_batch() if answers else text_batch()
    return look_inside(model, [batch], answers=answers, hull_samples=0), maps_of(model, batch)


def cases(answers: bool = False) -> list[tuple[MapInside, np.ndarray, Maps]]:
    """Each measured map of each layer with the same map by the operators."""
    inside, slow = measured(answers)
    found = []
    for layer, maps in zip(inside.layers, slow, strict=True):
        assert [map.name for map in layer.maps] == ["A1", "A2", "effective"]
        found += [(m, a, maps) for m, a in zip(layer.maps, (maps.first, maps.second, maps.effective), strict=True)]
    return found


def test_the_result_is_json() -> None:
    inside, _ = measured()
    assert json.loads(json.dumps(inside.to_dict(), allow_nan=False)) == inside.to_dict()
    assert (inside.tokens, inside.windows, inside.answers) == (60, 3, 0)


def test_first_and_rest_share_all_mass() -> None:
    for map, truth, maps in cases():
        for head in range(4):
            entries, rows = maps.entries(truth, head), maps.rows(truth, head)
            total = np.abs(entries).sum()
            first = sum(abs(row[0]) for row in rows)
            assert map.allocation.first.absolute.heads[head] == pytest.approx(first / total, **CLOSE)
            assert map.allocation.rest.absolute.heads[head] == pytest.approx(1 - first / total, **CLOSE)
            signed = sum(row[0] for row in rows)
            assert map.allocation.first.signed.heads[head] == pytest.approx(signed / total, **CLOSE)
            assert map.allocation.rest.signed.heads[head] == pytest.approx((entries.sum() - signed) / total, **CLOSE)
        assert map.allocation.answer is None
        assert map.allocation.first.absolute.mean == pytest.approx(np.mean(map.allocation.first.absolute.heads))


def test_answers_are_counted_in_the_rows_that_ask() -> None:
    inside, _ = measured(answers=True)
    assert inside.answers == 2 * 4
    # Row -> keys that hold its answer.
    sources = {6: [3], 8: [1], 10: [5], 12: [3, 7]}
    for map, truth, _ in cases(answers=True):
        assert map.allocation.answer is not None
        for head in range(4):
            rows = truth[:, head, list(sources)]
            total = np.abs(rows).sum()
            answers = [truth[:, head, row, key] for row, keys in sources.items() for key in keys]
            first = truth[:, head, list(sources), 0]
            assert map.allocation.answer.absolute.heads[head] == pytest.approx(np.abs(answers).sum() / total, **CLOSE)
            assert map.allocation.answer.signed.heads[head] == pytest.approx(np.sum(answers) / total, **CLOSE)
            assert map.allocation.first.absolute.heads[head] == pytest.approx(np.abs(first).sum() / total, **CLOSE)
            rest = np.sum(rows) - np.sum(answers) - first.sum()
            assert map.allocation.rest.signed.heads[head] == pytest.approx(rest / total, **CLOSE)


def test_answers_stand_behind_an_earlier_copy_of_the_asking_token() -> None:
    batch = recall_batch()
    marked = answer_keys(batch.tokens, batch.targets, batch.documents)
    expected = torch.zeros_like(marked)
    for row, key in ((6, 3), (8, 1), (10, 5), (12, 3), (12, 7)):
        expected[:, row, key] = True
    assert torch.equal(marked, expected)
    apart = batch.documents.clone()
    apart[:, 5:] += 10
    assert answer_keys(batch.tokens, batch.targets, apart).nonzero()[:, 1:].tolist() == [[12, 7]] * 2


def test_signs_zeros_and_rows_that_are_no_weighted_mean() -> None:
    for map, truth, maps in cases():
        for head in range(4):
            entries, rows = maps.entries(truth, head), maps.rows(truth, head)
            negative = -entries[entries < 0].sum() / np.abs(entries).sum()
            assert map.negative_mass.heads[head] == pytest.approx(negative, **CLOSE)
            assert map.exact_zeros.heads[head] == (entries == 0).mean()
            assert map.non_convex_rows.heads[head] == np.mean([(row / row.sum() < -1e-6).any() for row in rows])
        assert (map.negative_mass.mean > 0) == (map.name == "effective")  # pyright: ignore[reportOptionalOperand]


def test_exact_zeros_of_a_rectified_map() -> None:
    model, batch = stirred_model("diff_relu"), text_batch()
    inside = look_inside(model, [batch], answers=False, hull_samples=0)
    for layer, (mixer, x, where) in zip(inside.layers, model.captured(*batch[::2]), strict=True):
        ids = batch.documents
        visible = (ids[:, :, None] == ids[:, None]).tril()
        entries = mixer.maps(x, where).transpose(0, 1)[:, visible]
        assert layer.maps[-1].exact_zeros.heads == pytest.approx((entries == 0).double().mean(1).tolist())
        assert 0.1 < layer.maps[-1].exact_zeros.heads[0] < 0.9  # pyright: ignore[reportOptionalOperand]


def test_effective_keys_are_the_exponential_of_the_entropy() -> None:
    for map, truth, maps in cases():
        for head in range(4):
            shares = [np.abs(row) / np.abs(row).sum() for row in maps.rows(truth, head)]
            expected = np.mean([math.exp(-sum(p * math.log(p) for p in row if p > 0)) for row in shares])
            assert map.effective_keys.heads[head] == pytest.approx(expected, **CLOSE)


def test_profile_over_distance() -> None:
    for map, truth, maps in cases():
        tokens = truth.shape[-1]
        distance = np.arange(tokens)[:, None] - np.arange(tokens)
        edges = [edge for edge in DISTANCES if edge < tokens]
        assert len(map.weight_by_distance.mean) == len(edges) == 6
        for head in range(4):
            mass = np.abs(maps.entries(truth, head)).sum()
            for place, (low, high) in enumerate(zip(edges, [*edges[1:], tokens], strict=True)):
                entries = truth[:, head][maps.visible & (distance >= low) & (distance < high)]
                assert map.weight_by_distance.heads[head][place] == pytest.approx(entries.mean(), **CLOSE)
                assert map.mass_by_distance.heads[head][place] == pytest.approx(np.abs(entries).sum() / mass, **CLOSE)


def test_sorted_mass_is_the_mean_of_sorted_rows() -> None:
    for map, truth, _ in cases():
        some = np.abs(truth[:, :, (truth.shape[2] - 1) % EVERY :: EVERY])
        ranked = -np.sort(-some / some.sum(-1, keepdims=True), axis=-1).mean((0, 2), keepdims=True)[0, :, 0]
        for head in range(4):
            curve = map.sorted_mass.heads[head]
            assert curve[: some.shape[-1]] == pytest.approx(ranked[head].tolist(), **CLOSE)
            assert len(curve) == 64 and sum(x or 0.0 for x in curve) == pytest.approx(1.0)


@pytest.mark.parametrize("context", [64, 128])
@pytest.mark.parametrize("task", ["recall", "needle", "induction"])
def test_sampled_rows_have_their_part_of_the_answers(
    task: Literal["recall", "needle", "induction"], context: int
) -> None:
    data = open_data(SyntheticData(task=task), context=context, batch_size=64, seed=0)
    scored = next(data.evaluation("dev")).targets != NOT_SCORED
    assert some_rows(scored[:, None, :, None]).double().mean() > 0.5 * scored.double().mean()


def test_keys_that_no_later_query_looks_at_are_dead() -> None:
    model, batch = stirred_model("diff_v1"), text_batch()
    with torch.no_grad():
        for block in model.blocks():
            block.mixer.q.weight *= 6.0  # pyright: ignore[reportAttributeAccessIssue]
    inside = look_inside(model, [batch], answers=False, hull_samples=0)
    for layer, maps in zip(inside.layers, maps_of(model, batch), strict=True):
        for map, truth in zip(layer.maps, (maps.first, maps.second, maps.effective), strict=True):
            for head in range(4):
                dead = keys = 0
                for window, key in np.ndindex(maps.visible.shape[:2]):
                    later = [t for t in range(key + 1, truth.shape[2]) if maps.visible[window, t, key]]
                    keys += bool(later)
                    dead += bool(later) and all(abs(truth[window, head, t, key]) < 1e-4 for t in later)
                assert map.dead_keys.heads[head] == pytest.approx(dead / keys)
        assert max(x or 0.0 for x in layer.maps[0].dead_keys.heads) > 0


def test_cosine_of_heads() -> None:
    for map, truth, maps in cases():
        for one in range(4):
            for other in range(4):
                a, b = maps.entries(truth, one), maps.entries(truth, other)
                expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
                assert map.head_cosine[one][other] == pytest.approx(expected, **CLOSE)


def test_windows_may_come_in_any_batches_and_lengths() -> None:
    model, batch = stirred_model("diff_v2"), text_batch()
    apart = [Batch(*(part[row : row + 1] for part in batch)) for row in range(3)]
    one, other = (look_inside(model, batches, answers=False, hull_samples=0) for batches in ([batch], apart))
    flat = [torch.tensor(_numbers(inside.to_dict()), dtype=torch.float64) for inside in (one, other)]
    torch.testing.assert_close(flat[0], flat[1], rtol=1e-9, atol=1e-9)
    short = Batch(*(part[:, :5] for part in batch))
    assert look_inside(model, [short, batch], answers=False, hull_samples=0).tokens == 75


@pytest.mark.parametrize("variant", ["diff_v1", "diff_v2"])
def test_padding_changes_nothing(variant: str) -> None:
    model, batch = stirred_model(variant), text_batch()
    front, end, only = torch.full((3, 3), -1), torch.full((3, 1), -1), torch.full((1, 24), -1)
    documents = torch.cat((torch.cat((front, batch.documents, end), 1), only))
    tokens, targets = (torch.ones_like(documents), torch.full_like(documents, NOT_SCORED))
    tokens[:3, 3:23], targets[:3, 3:23] = batch.tokens, batch.targets
    padded = Batch(tokens, targets, documents)
    found = [look_inside(model, [part], answers=False, hull_samples=6).to_dict() for part in (batch, padded)]
    assert (found[1]["tokens"], found[1]["windows"]) == (60, 3)
    torch.testing.assert_close(*(torch.tensor(_numbers(inside)) for inside in found))


@pytest.mark.parametrize("variant", names())
def test_every_variant_can_be_looked_into(variant: str) -> None:
    model, batch = stirred_model(variant), text_batch()
    before = model(batch.tokens)
    inside = look_inside(model, [batch], answers=False, hull_samples=6)
    json.dumps(inside.to_dict(), allow_nan=False)
    assert torch.equal(model(batch.tokens), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    for layer in inside.layers:
        assert layer.maps[-1].name == "effective"
        share = layer.maps[-1].allocation
        assert (share.first.absolute.mean or 0) + (share.rest.absolute.mean or 0) == pytest.approx(1.0)


def _numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        return [x for part in value.values() for x in _numbers(part)]
    if isinstance(value, list):
        return [x for part in value for x in _numbers(part)]
    return [float(value)] if isinstance(value, int | float) else []
