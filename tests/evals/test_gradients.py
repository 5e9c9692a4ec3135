"""d loss / d logits of each map, against a model whose attention has leaves among its logits."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import diffattn.variants.diff_hierarchical as hierarchical
import diffattn.variants.diff_v1 as v1
from diffattn import attention
from diffattn.data.base import NOT_SCORED
from diffattn.evals.allocation import EVERY
from diffattn.evals.gradients import before_the_norm
from diffattn.evals.inside import WEIGHTS
from diffattn.evals.instruments import look_inside
from support.inside import maps_of, stirred_model, text_batch


def leaves_of_v1(monkeypatch: pytest.MonkeyPatch, norm: str) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
    """A model, and d loss / d logits of A1 and A2 of each layer."""
    model, batch = stirred_model("diff_v1", mixer={"norm": norm}), text_batch()
    added: list[tuple[Tensor, Tensor]] = []
    ids = batch.documents
    visible = (ids[:, :, None] == ids[:, None]).tril()[:, None]

    def attend(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor, *norm: Any, **_: Any) -> Tensor:
        share = q1.shape[1] // k1.shape[1]
        k1, k2, v = (x.repeat_interleave(share, 1) for x in (k1, k2, v))
        logits = [q @ k.mT / math.sqrt(q.shape[-1]) for q, k in ((q1, k1), (q2, k2))]
        leaves = [torch.zeros_like(x, requires_grad=True) for x in logits]
        added.append((leaves[0], leaves[1]))
        first, second = (
            (x + leaf).masked_fill(~visible, -torch.inf).softmax(-1) for x, leaf in zip(logits, leaves, strict=True)
        )
        weight, eps, gain = norm
        read = (first - lam * second) @ v
        return gain * (read if eps is None else F.rms_norm(read, read.shape[-1:], weight, eps))

    with monkeypatch.context() as patch:
        patch.setattr(v1, "normed_diff_attention", attend)
        logits = model(batch.tokens, batch.documents)
        F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), reduction="sum", ignore_index=NOT_SCORED
        ).backward()
    model.zero_grad()
    return model, [tuple(leaf.grad for leaf in pair) for pair in added]  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("norm", ["weight", "plain", "none"])
def test_gradients_of_each_map(monkeypatch: pytest.MonkeyPatch, norm: str) -> None:
    model, truth = leaves_of_v1(monkeypatch, norm)
    inside = look_inside(model, [text_batch()], answers=False, hull_samples=0)
    for layer, gradients in zip(inside.layers, truth, strict=True):
        assert layer.maps[2].gradient_norm is None and layer.maps[2].gradient_by_weight is None
        for map, gradient in zip(layer.maps[:2], gradients, strict=True):
            assert map.gradient_norm is not None
            expected = gradient.square().sum(-1).mean((0, 2)).sqrt()
            assert map.gradient_norm.heads == pytest.approx(expected.tolist(), rel=1e-6)


def test_gradients_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    model, truth = leaves_of_v1(monkeypatch, "weight")
    inside = look_inside(model, [text_batch()], answers=False, hull_samples=0)
    for layer, gradients, maps in zip(inside.layers, truth, maps_of(model, text_batch()), strict=True):
        for map, gradient, weights in zip(layer.maps[:2], gradients, (maps.first, maps.second), strict=True):
            assert map.gradient_by_weight is not None
            rows = np.arange((weights.shape[2] - 1) % EVERY, weights.shape[2], EVERY)
            seen = maps.visible[:, rows]
            for head in range(4):
                pull = np.abs(gradient.numpy()[:, head][:, rows][seen])
                bins = np.digitize(weights[:, head][:, rows][seen], WEIGHTS) - 1
                expected = [pull[bins == place].mean() if (bins == place).any() else None for place in range(7)]
                assert map.gradient_by_weight.heads[head] == [
                    None if value is None else pytest.approx(value, rel=1e-6) for value in expected
                ]


def test_a_single_map_has_the_gradient_of_its_mask() -> None:
    """What is added to the logits from outside is a mask: torch differentiates through it."""
    model, batch = stirred_model("softmax", mixer={"impl": "reference", "norm": True}), text_batch()
    inside = look_inside(model, [batch], answers=False, hull_samples=0)
    mask = torch.zeros(3, 4, 20, 20, dtype=torch.float64, requires_grad=True)

    def add(_: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x, where, *rest = arguments
        return (x, type(where)(**{**vars(where), "attn_mask": mask}), *rest)

    for number, layer in enumerate(inside.layers):
        mask.grad = None
        hook = model.blocks()[number].mixer.register_forward_pre_hook(add)
        logits = model(batch.tokens, batch.documents)
        hook.remove()
        F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), reduction="sum", ignore_index=NOT_SCORED
        ).backward()
        assert mask.grad is not None and layer.maps[0].gradient_norm is not None
        expected = mask.grad.square().sum(-1).mean((0, 2)).sqrt()
        assert layer.maps[0].gradient_norm.heads == pytest.approx(expected.tolist(), rel=1e-6)


def test_keys_that_get_exactly_nothing_count_among_the_smallest_weights() -> None:
    """Logits below 0 have weight 0 and gradient 0 in expm1."""
    for layer in look_inside(stirred_model("expm1"), [text_batch()], answers=False, hull_samples=0).layers:
        assert layer.maps[0].gradient_by_weight is not None
        assert [curve[0] for curve in layer.maps[0].gradient_by_weight.heads] == [0.0] * 4


def test_what_the_second_map_learns_from_the_first_is_the_firsts_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In diff_hierarchical the second queries are made from what the first map read."""
    model, batch = stirred_model("diff_hierarchical"), text_batch()
    inside = look_inside(model, [batch], answers=False, hull_samples=0)
    added: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
        added.append(q.new_zeros(3, 4, 20, 20).requires_grad_())
        return attention(q, k, v, **{**given, "attn_mask": added[-1], "impl": "reference"})

    monkeypatch.setattr(hierarchical, "attention", attend)
    logits = model(batch.tokens, batch.documents)
    F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum", ignore_index=NOT_SCORED).backward()
    measured = [map for layer in inside.layers for map in layer.maps[:2]]
    for map, leaf in zip(measured, added, strict=True):
        assert leaf.grad is not None and map.gradient_norm is not None
        expected = leaf.grad.square().sum(-1).mean((0, 2)).sqrt()
        assert map.gradient_norm.heads == pytest.approx(expected.tolist(), rel=1e-6)


@pytest.mark.parametrize(("eps", "weighted"), [(None, False), (1e-5, False), (1e-5, True)])
def test_the_norm_is_undone_as_autograd_does_it(eps: float | None, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    read = torch.randn(2, 3, 5, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, generator=generator, dtype=torch.float64) if weighted else None
    gate = torch.rand(2, 3, 5, 1, generator=generator, dtype=torch.float64)
    out = gate * (read if eps is None else F.rms_norm(read, (8,), weight, eps))
    gradient = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad(out, read, gradient)
    found = before_the_norm(read.detach(), out.detach(), gradient, eps, weight)
    torch.testing.assert_close(found, expected)
