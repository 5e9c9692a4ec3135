"""The schedule, the decay groups and AdamW."""

import math

import pytest
import torch
from torch import nn

from diffattn.model.decoder import build
from diffattn.train.optim import AdamW, decayed, learning_rate
from support.training import tiny_run


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 350])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 0.99])
def test_the_last_step_has_exactly_the_final_ratio(schedule, steps, warmup):
    rate = learning_rate(steps, steps=steps, peak=0.02, warmup=warmup, final_ratio=0.25, schedule=schedule)
    assert rate == pytest.approx(0.005, rel=1e-12)


def test_the_warm_up_rises_in_equal_parts_to_the_peak():
    rates = [learning_rate(step, steps=100, peak=1.0, warmup=0.05) for step in range(1, 7)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5] < 1.0


def test_half_way_down_a_cosine_and_a_line_meet_in_the_middle():
    cosine = learning_rate(60, steps=100, peak=1.0, warmup=0.2, final_ratio=0.1, schedule="cosine")
    line = learning_rate(60, steps=100, peak=1.0, warmup=0.2, final_ratio=0.1, schedule="linear")
    assert cosine == pytest.approx(0.55)
    assert line == pytest.approx(0.55)


def test_a_quarter_of_the_way_down_follows_the_formulas():
    cosine = learning_rate(40, steps=100, peak=1.0, warmup=0.2, final_ratio=0.0, schedule="cosine")
    line = learning_rate(40, steps=100, peak=1.0, warmup=0.2, final_ratio=0.0, schedule="linear")
    assert cosine == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert line == pytest.approx(0.75)


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_decay_and_embeddings_norms_and_vectors_do_not(tied):
    model = build(tiny_run(model={"tied_embeddings": tied}).model)
    chosen = decayed(model)
    assert chosen == {
        name for name, weight in model.named_parameters() if weight.ndim == 2 and not name.startswith("embedding")
    }
    assert ("unembedding.weight" in chosen) is not tied
    assert any("mixer" in name for name in chosen)
    assert not any("norm" in name or "lambda" in name for name in chosen)


def _twins() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3))
    other = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3))
    other.load_state_dict(one.state_dict())
    return one, other


def _backward(model: nn.Module, step: int) -> torch.Tensor:
    loss = (model(torch.arange(5)) * torch.linspace(-1, 3 + step, 3)).square().sum()
    loss.backward()
    return loss.detach()


def test_the_numbers_are_those_of_torch():
    ours, theirs = _twins()
    optimizer = AdamW(ours, betas=(0.9, 0.95), weight_decay=0.1)
    groups = [
        {"params": [weight for name, weight in theirs.named_parameters() if name in decayed(theirs)]},
        {"params": [weight for name, weight in theirs.named_parameters() if name not in decayed(theirs)]},
    ]
    groups[1]["weight_decay"] = 0.0
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    for step in range(4):
        norm = optimizer.step(_backward(ours, step), 0.01 * (step + 1), 0.5)
        _backward(theirs, step)
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        for group in reference.param_groups:
            group["lr"] = 0.01 * (step + 1)
        reference.step()
        reference.zero_grad()
        assert torch.equal(norm, expected)
        assert norm > 0.5  # so that clipping is part of what is compared
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_no_update_after_a_value_that_is_not_finite(poison):
    model, _ = _twins()
    optimizer = AdamW(model, betas=(0.9, 0.95), weight_decay=0.1)
    optimizer.step(_backward(model, 0), 0.01, 1.0)
    before = {name: value.clone() for name, value in optimizer.state().items()}
    weights = [weight.clone() for weight in model.parameters()]
    loss = _backward(model, 1)
    if poison == "loss":
        loss = loss * float("inf")
    else:
        model[1].weight.grad[0, 0] = float("nan")
    optimizer.step(loss, 0.01, 1.0)
    optimizer.step(_backward(model, 2), 0.01, 1.0)
    assert optimizer.failed
    assert int(optimizer.updates) == 1
    assert all(torch.equal(value, before[name]) for name, value in optimizer.state().items())
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
