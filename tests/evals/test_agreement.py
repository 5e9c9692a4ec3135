"""How A1 and A2 relate, against formulas on the operators' own maps."""

import functools
import math

import numpy as np
import pytest
import torch

from diffattn.evals.inside import LOSSES, PairInside
from diffattn.evals.instruments import look_inside
from support.inside import Maps, losses_of, maps_of, recall_batch, stirred_model, text_batch

CLOSE = {"rel": 1e-6, "abs": 1e-9}
"""Float64 sums in another order."""


@functools.lru_cache
def cases(answers: bool = False) -> list[tuple[PairInside, Maps]]:
    model, batch = stirred_model("diff_v1"), recall_batch() if answers else text_batch()
    inside = look_inside(model, [batch], answers=answers, hull_samples=0)
    pairs = [layer.pair for layer in inside.layers if layer.pair is not None]
    return list(zip(pairs, maps_of(model, batch), strict=True))


def test_cosine_of_the_two_maps() -> None:
    for pair, maps in cases():
        for head in range(4):
            a, b = (maps.entries(map, head) for map in (maps.first, maps.second))
            assert pair.cosine.heads[head] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), **CLOSE)


@pytest.mark.parametrize("answers", [False, True])
def test_what_the_second_map_tells_of_the_firsts_noise(answers: bool) -> None:
    for pair, maps in cases(answers):
        assert pair.lam.heads == pytest.approx([maps.lam] * 4)
        counted = maps.visible.copy()
        if answers:
            counted[:, [row for row in range(14) if row not in (6, 8, 10, 12)]] = False
            for row, key in ((6, 3), (8, 1), (10, 5), (12, 3), (12, 7)):
                counted[:, row, key] = False
        for head in range(4):
            a, b = (map[:, head][counted] for map in (maps.first, maps.second))
            ((best,), *_) = np.linalg.lstsq(b[:, None], a, rcond=None)
            spread = np.square(a - a.mean()).sum()
            assert pair.lam_least_squares.heads[head] == pytest.approx(best, **CLOSE)
            assert pair.r2.heads[head] == pytest.approx(1 - np.square(a - best * b).sum() / spread, **CLOSE)
            learned = 1 - np.square(a - maps.lam * b).sum() / spread
            assert pair.r2_learned.heads[head] == pytest.approx(learned, **CLOSE)


def test_lambda_of_each_token_is_weighed_token_by_token() -> None:
    model, batch = stirred_model("diff_v2"), text_batch()
    inside = look_inside(model, [batch], answers=False, hull_samples=0)
    for layer, (mixer, x, where) in zip(inside.layers, model.captured(*batch[::2]), strict=True):
        with torch.no_grad():
            (first, second), lam = mixer.branches(x, where), mixer.lam(x)
        assert lam is not None and layer.pair is not None and layer.lam is not None
        assert layer.pair.lam.heads == pytest.approx(lam.mean((0, 1)).tolist())
        ids = batch.documents
        visible = (ids[:, :, None] == ids[:, None]).tril()
        rest = (first.map + second.coefficient * second.map).transpose(0, 1)[:, visible]
        a = first.map.transpose(0, 1)[:, visible]
        expected = 1 - rest.square().sum(1) / (a - a.mean(1, keepdim=True)).square().sum(1)
        assert layer.pair.r2_learned.heads == pytest.approx(expected.tolist(), **CLOSE)
        summary = (lam.mean(), lam.min(), lam.max(), (lam < 0).double().mean(), (lam > 1).double().mean())
        found = (layer.lam.mean, layer.lam.min, layer.lam.max, layer.lam.below_0, layer.lam.above_1)
        assert found == pytest.approx(tuple(map(float, summary)))


def test_divergence_of_the_maps_and_the_tokens_loss() -> None:
    model, batch = stirred_model("diff_v1"), text_batch()
    losses = losses_of(model, batch).numpy()
    scored = np.isfinite(losses)
    bins = np.digitize(losses, LOSSES) - 1
    for pair, maps in cases():
        for head in range(4):
            rows = zip(maps.rows(maps.first, head), maps.rows(maps.second, head), strict=True)
            js = np.array([_jensen_shannon(p, q) for p, q in rows]).reshape(losses.shape)
            assert pair.jensen_shannon.heads[head] == pytest.approx(js.mean(), **CLOSE)
            expected = np.corrcoef(js[scored], losses[scored])[0, 1]
            assert pair.js_loss_correlation.heads[head] == pytest.approx(expected, **CLOSE)
            for place, found in enumerate(pair.js_by_loss.heads[head]):
                inside = js[scored & (bins == place)]
                assert found == (pytest.approx(inside.mean(), **CLOSE) if len(inside) else None)


def test_maps_that_are_equal_do_not_part() -> None:
    model, batch = stirred_model("diff_v1"), text_batch()
    with torch.no_grad():
        for block in model.blocks():
            for part in (block.mixer.q, block.mixer.k):
                weight = part.weight.unflatten(0, (-1, 2, block.mixer.head_dim))  # pyright: ignore
                weight[:, 1] = weight[:, 0]
    for layer in look_inside(model, [batch], answers=False, hull_samples=0).layers:
        assert layer.pair is not None
        assert layer.pair.cosine.heads == pytest.approx([1.0] * 4)
        assert layer.pair.lam_least_squares.heads == pytest.approx([1.0] * 4)
        assert layer.pair.r2.heads == pytest.approx([1.0] * 4)
        assert layer.pair.jensen_shannon.heads == pytest.approx([0.0] * 4, abs=1e-12)


def test_one_map_has_no_pair() -> None:
    inside = look_inside(stirred_model("softmax"), [text_batch()], answers=False, hull_samples=0)
    assert [layer.pair for layer in inside.layers] == [None, None]
    assert [[map.name for map in layer.maps] for layer in inside.layers] == [["A", "effective"]] * 2


def test_what_comes_out_of_a_gate_is_the_map_times_it() -> None:
    for layer in look_inside(stirred_model("output_gate"), [text_batch()], answers=False, hull_samples=0).layers:
        own, effective = layer.maps
        assert all(0 < gate < 1 for gate in own.coefficient.heads)
        assert effective.coefficient.heads == [1.0] * layer.heads
        # Each entry loses by its gate.
        for gated, entry in zip(effective.weight_by_distance.heads, own.weight_by_distance.heads, strict=True):
            assert gated[0] < entry[0]


def _jensen_shannon(p: np.ndarray, q: np.ndarray) -> float:
    mean = (p + q) / 2
    return sum(_divergence(x, mean) for x in (p, q)) / 2


def _divergence(p: np.ndarray, q: np.ndarray) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
