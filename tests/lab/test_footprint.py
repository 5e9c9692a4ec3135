"""Counted memory against what autograd keeps, what a cache holds, and what torch's FLOP counter sees."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from diffattn.lab.footprint import Setting, inference, training
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import build
from diffattn.ops import rows
from diffattn.ops.loss import cross_entropy
from support.implementations import RUNNING
from support.models import random_tokens, small_config

# Beside what autograd keeps there are a step's loss and its share, a few numbers without dimension.
SCALARS = 64
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "footprint.py"
IMPLEMENTATIONS = [impl for impl in RUNNING if impl != "triton"]


def model_of(variant: str, impl: str = "auto", **fields: Any) -> ModelConfig:
    """One layer and more than one piece of the vocabulary."""
    return small_config(variant, mixer={"impl": impl, "head_dim": 16}, layers=1, vocab_size=600, **fields)


def kept_by_autograd(config: ModelConfig, setting: Setting) -> int:
    """Bytes of the storages that a real forward pass keeps, weights and tokens aside."""
    model, tokens = build(config), random_tokens(setting.batch_size, config.context)
    own = {x.untyped_storage().data_ptr() for x in (*model.parameters(), tokens)}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes(), x
        return x

    autocast = torch.autocast("cpu", torch.bfloat16, enabled=setting.precision == "bfloat16")
    with saved_tensors_hooks(keep, lambda x: x), autocast:
        loss = cross_entropy(model.hidden(tokens), model.head, tokens)[0]
    assert loss.requires_grad
    return sum(size for place, (size, _) in kept.items() if place not in own)


def assert_counted(config: ModelConfig, setting: Setting) -> None:
    kept = kept_by_autograd(config, setting)
    assert kept <= training(config, setting).held["activations"] <= kept + SCALARS


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("variant", ["softmax", "diff_v1", "diff_v2"])
def test_activations_are_what_autograd_keeps(variant: str, impl: str) -> None:
    assert_counted(model_of(variant, impl), Setting(batch_size=3))


@pytest.mark.parametrize("variant", ["softmax", "diff_v1", "diff_v2"])
def test_autocast_keeps_rounded_copies_too(variant: str) -> None:
    assert_counted(model_of(variant), Setting(batch_size=3, precision="bfloat16"))


@pytest.mark.parametrize("entries", [2**22, 512])
def test_maps_by_entry_are_kept_in_one_tile_and_computed_again_in_many(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "ELEMENTS", entries)
    assert_counted(model_of("sigmoid"), Setting(batch_size=3))
    assert_counted(model_of("dint"), Setting(batch_size=3))


def test_weights_gradients_and_moments_are_4_4_and_8_bytes_a_parameter() -> None:
    config = model_of("diff_v1")
    found = training(config, Setting(batch_size=1, precision="bfloat16")).held
    four = 4 * config.cost().parameters
    assert (found["weights"], found["gradients"]) == (four, four)
    assert 2 * four <= found["moments"] <= 2 * four + SCALARS


def test_a_variant_that_trains_a_part_has_gradients_and_moments_of_that_part_alone() -> None:
    config = model_of("dex")
    found = training(config, Setting(batch_size=1)).held
    assert 0 < found["gradients"] < 0.5 * found["weights"]
    assert 2 * found["gradients"] <= found["moments"] <= 2 * found["gradients"] + SCALARS


def test_only_the_formula_holds_maps() -> None:
    def kept(impl: str, context: int) -> int:
        return training(model_of("diff_v1", impl, context=context), Setting(batch_size=1)).held["activations"]

    # The maps grow with the square of the context, all else with the context or not at all.
    assert kept("reference", 256) > 2.5 * kept("reference", 128)
    assert kept("blocked", 256) <= 2.01 * kept("blocked", 128)


def test_checkpointing_keeps_less_and_computes_the_layers_again() -> None:
    config = small_config("diff_v1", layers=4, mixer={"head_dim": 16})
    plain = training(config, Setting(batch_size=8))
    again = training(config, Setting(batch_size=8, checkpoint_activations=True))
    assert again.held["activations"] < 0.3 * plain.held["activations"]
    assert again.peak < plain.peak
    assert plain.flops["backward"] < again.flops["backward"] < plain.flops["backward"] + plain.flops["forward"]


def test_further_micro_batches_find_the_gradients_of_the_first() -> None:
    config = model_of("softmax")
    once, often = (training(config, Setting(batch_size=3, accumulate=count)) for count in (1, 4))
    assert once.phases["forward"] + 4 * config.cost().parameters == pytest.approx(often.phases["forward"], abs=SCALARS)
    assert once.flops == often.flops


@pytest.mark.parametrize("vocabulary", [512, 513])
@pytest.mark.parametrize("variant", ["softmax", "diff_v1", "diff_v2"])
def test_executed_flops_are_those_of_the_config(variant: str, vocabulary: int) -> None:
    # Logits of one piece of the vocabulary are computed once, those of several pieces again in the backward pass.
    assert_executed(small_config(variant, mixer={"head_dim": 16}, vocab_size=vocabulary))


@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("variant", ["softmax", "diff_v1", "diff_v2"])
def test_the_products_of_every_implementation_are_counted(variant: str, impl: str, groups: int | None) -> None:
    assert_executed(small_config(variant, mixer={"impl": impl, "head_dim": 16, "kv_heads": groups}, layers=1))


def assert_executed(config: ModelConfig) -> None:
    found = training(config, Setting(batch_size=2))
    assert sum(found.flops.values()) == 2 * config.context * config.cost().flops_executed


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_cache_is_that_of_generation(precision: str) -> None:
    config, setting = model_of("diff_v1", token_shift=True), Setting(batch_size=3, precision=precision)
    model = build(config, dtype=getattr(torch, precision))
    cache = model.new_cache(3, config.context)
    tensors = [*cache.previous, cache.documents, cache.lengths, cache.real]
    tensors += [x for state in cache.states for x in state.values()]
    found = inference(config, setting).held
    assert found["cache"] == sum(x.untyped_storage().nbytes() for x in tensors if x is not None)
    assert found["weights"] == sum(x.untyped_storage().nbytes() for x in model.parameters())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_process_takes_the_memory_that_is_counted(tmp_path: Path) -> None:
    # Case 3: a training step of V1 that takes 1.16 GB, in a process of its own, every large block mapped by itself.
    out = tmp_path / "footprint.json"
    subprocess.run([sys.executable, BENCHMARK, "--only", "3", "--json", out], check=True)
    (case,) = json.loads(out.read_text(encoding="utf-8"))["cases"]
    assert 1e9 < case["counted"] < 1.4e9
    # What the docs promise. Off by 0.4 % where it was written; kernels' own buffers and pages differ between machines.
    assert case["counted"] == pytest.approx(case["measured"], rel=0.1)
