"""A model of another attention starts from what it has in common with the one it continues."""

import pytest
import torch
from torch.testing import assert_close

from diffattn.hub.adapt import adapt
from diffattn.model.decoder import build
from diffattn.variants.base import MixerConfig
from support.models import random_tokens, small_config, small_model

SEED = 7


def parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("variant", ["softmax1", "dex", "sink", "output_gate"])
def test_shared_parameters_are_taken_over_and_new_ones_drawn_from_the_seed(variant: str) -> None:
    source, config = small_model("softmax", torch.float32), small_config(variant)
    model, drawn = parameters(adapt(source, config, SEED)), parameters(build(config, SEED))
    old = parameters(source)
    assert model.keys() >= old.keys()
    for name, value in model.items():
        assert torch.equal(value, old.get(name, drawn[name])), name


def test_dex_computes_what_its_softmax_model_did() -> None:
    source = small_model("softmax", torch.float32)
    tokens = random_tokens(2, 9)
    assert torch.equal(adapt(source, small_config("dex"), SEED)(tokens), source(tokens))


def test_the_first_queries_of_diff_v2_are_the_heads_of_the_source() -> None:
    source, config = small_model("softmax", torch.float32), small_config("diff_v2")
    model, drawn = adapt(source, config, SEED), build(config, SEED)
    for old, new, fresh in zip(source.blocks(), model.blocks(), drawn.blocks(), strict=True):
        pairs, starts = (mixer.q.weight.unflatten(0, (4, 2, 8)) for mixer in (new.mixer, fresh.mixer))
        assert torch.equal(pairs[:, 0], old.mixer.q.weight.unflatten(0, (4, 8)))
        assert torch.equal(pairs[:, 1], starts[:, 1])
        assert torch.equal(new.mixer.lambda_proj.weight, fresh.mixer.lambda_proj.weight)
        for name in ("k", "v", "o"):
            assert torch.equal(getattr(new.mixer, name).weight, getattr(old.mixer, name).weight)


def test_diff_v2_without_its_second_maps_computes_what_the_source_did() -> None:
    source = small_model("softmax", torch.float32)
    model, tokens = adapt(source, small_config("diff_v2"), SEED), random_tokens(2, 9)
    assert not torch.allclose(model(tokens), source(tokens), atol=1e-2)
    for block in model.blocks():
        # sigmoid(-large) = 0: nothing is subtracted.
        block.mixer.lam = lambda x: torch.zeros(*x.shape[:2], 4)
    # Two maps are summed in another order than one.
    assert_close(model(tokens), source(tokens), rtol=0, atol=1e-5)


def test_a_pair_taken_from_pairs_stays_as_it_is() -> None:
    source, config = small_model("diff_v2", torch.float32), small_config("diff_v2", mixer={"impl": "reference"})
    old, new = parameters(source), parameters(adapt(source, config, SEED))
    assert all(torch.equal(new[name], old[name]) for name in old)


def test_single_layers_may_change_and_the_source_is_left_alone() -> None:
    source = small_model("softmax", torch.bfloat16)
    before = {name: value.clone() for name, value in parameters(source).items()}
    dex = MixerConfig.from_dict({"name": "dex", "heads": 4, "kv_heads": 2})
    model = adapt(source, small_config("softmax", mixers_by_layer={1: dex}), SEED)
    assert [hasattr(block.mixer, "w_d") for block in model.blocks()] == [False, True]
    with torch.no_grad():
        for value in model.parameters():
            assert value.dtype == torch.float32
            value += 1
    assert all(torch.equal(value, before[name]) for name, value in parameters(source).items())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ffn_width": 50}, "ffn_width is 48 in the model to start from and 50 in the new one"),
        ({"layers": 3}, "layers is 2 .* set layers to 2"),
        ({"vocab_size": 41}, "vocab_size is 40"),
        ({"mixer": {"kv_heads": 4}}, r"layers\.0\.mixer\.k\.weight is \[16, 32\] .* \[32, 32\] .*key/value groups"),
        ({"mixer": {"heads": 2, "head_dim": 8}}, r"layers\.0\.mixer\.q\.weight is \[32, 32\] .* \[16, 32\]"),
    ],
)
def test_other_differences_are_named(change: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        adapt(small_model("softmax", torch.float32), small_config("softmax1", **change), SEED)


def test_pairs_of_other_heads_than_the_sources_are_refused() -> None:
    config = small_config("diff_v2", mixer={"heads": 2, "head_dim": 16})
    with pytest.raises(ValueError, match=r"mixer\.q\.weight is \[32, 32\] .* \[64, 32\]"):
        adapt(small_model("softmax", torch.float32), config, SEED)
