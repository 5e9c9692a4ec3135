"""Counted memory against what autograd keeps, what a cache holds, and what torch's FLOP counter sees."""

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from diffattn.lab.footprint import Setting, training
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import build
from diffattn.ops import rows
from diffattn.ops.loss import cross_entropy
from support.implementations import RUNNING
from support.models import random_tokens, small_config

BATCH = 3
# Beside what autograd keeps there are a step's loss and its share, a few numbers without dimension.
SCALARS = 64


def model_of(variant: str, impl: str = "auto", **fields: object) -> ModelConfig:
    return small_config(variant, mixer={"impl": impl, "head_dim": 16}, **fields)


def kept_by_autograd(config: ModelConfig, setting: Setting) -> int:
    """Bytes of the storages that a real forward pass keeps, weights and tokens aside."""
    model, tokens = build(config), random_tokens(setting.batch_size, config.context)
    own = {x.untyped_storage().data_ptr() for x in (*model.parameters(), tokens)}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes(), x
        return x

    with (
        saved_tensors_hooks(keep, lambda x: x),
        torch.autocast("cpu", torch.bfloat16, enabled=setting.precision == "bfloat16"),
    ):
        loss = cross_entropy(model.hidden(tokens), model.head, tokens)[0]
    assert loss.requires_grad
    return sum(size for place, (size, _) in kept.items() if place not in own)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("impl", [impl for impl in RUNNING if impl != "triton"])
@pytest.mark.parametrize("variant", ["softmax", "diff_v1", "diff_v2"])
def test_activations_are_what_autograd_keeps(variant: str, impl: str, precision: str) -> None:
    config, setting = model_of(variant, impl), Setting(batch_size=BATCH, precision=precision)
    counted = training(config, setting).held["activations"]
    assert kept_by_autograd(config, setting) <= counted <= kept_by_autograd(config, setting) + SCALARS


@pytest.mark.parametrize("entries", [2**22, 512])
@pytest.mark.parametrize("variant", ["sigmoid", "dint", "diff_relu"])
def test_variants_without_kernel_too_in_one_tile_or_many(
    variant: str, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "ELEMENTS", entries)
    config, setting = model_of(variant), Setting(batch_size=BATCH)
    counted = training(config, setting).held["activations"]
    assert kept_by_autograd(config, setting) <= counted <= kept_by_autograd(config, setting) + SCALARS
