"""A model of another attention starts from what it has in common with the one it continues."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from diffattn.hub.adapt import adapt, check_continues
from diffattn.model.decoder import Decoder, build
from diffattn.variants.base import MixerConfig
from diffattn.variants.dex import DexMixer
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
        (
            {"mixer": {"kv_heads": 4}},
            r"layer 0 of the model to start from is softmax with 4 output heads in 2 .* softmax1 with 4 .* heads in 4",
        ),
        ({"mixer": {"heads": 2, "head_dim": 8}}, r"softmax with 4 output heads .* softmax1 with 2 output heads"),
    ],
)
def test_other_differences_are_named(change: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        adapt(small_model("softmax", torch.float32), small_config("softmax1", **change), SEED)


@pytest.mark.parametrize(
    ("variant", "heads", "kv_heads"),
    [
        ("softmax", 2, None),
        ("softmax", 8, None),
        ("diff_v1", 2, None),
        ("gated_logsigmoid", 2, None),
        ("diff_relu", 2, None),
        ("dint", 2, None),
        ("diff_v2", 2, None),
        ("sink", 4, 2),
    ],
)
def test_other_heads_in_tensors_of_the_same_shapes_are_refused(variant: str, heads: int, kv_heads: int | None) -> None:
    # But for diff_v2 and the last, which has fewer groups, all matrices have the shapes of the source's.
    source = small_model("softmax", torch.float32, mixer={"kv_heads": None})
    config = small_config(variant, mixer={"heads": heads, "kv_heads": kv_heads})
    named = rf"is softmax with 4 output heads in 4 .*keys 8 and values 8 wide.* {variant} with {heads} output heads"
    with pytest.raises(ValueError, match=named):
        adapt(source, config, SEED)
    with pytest.raises(ValueError, match=named):
        check_continues(source.config, config)


def test_a_single_layer_with_other_heads_is_refused() -> None:
    fewer = MixerConfig.from_dict({"name": "softmax", "heads": 2, "kv_heads": 1})
    with pytest.raises(ValueError, match="layer 1 of the model to start from"):
        adapt(small_model("softmax", torch.float32), small_config("softmax", mixers_by_layer={1: fewer}), SEED)


SAME_HEADS = [
    *[
        ("softmax", name)
        for name in (
            *("softmax1", "sink", "affine", "linear", "expm1", "qk_norm", "output_gate", "sigmoid", "map_mix"),
            *("map_mix_mlp", "diff_temperature", "dex", "diff_v2"),
        )
    ],
    ("sigmoid", "softmax"),
    ("output_gate", "diff_v2"),
    *[
        ("diff_v1", name)
        for name in ("diff_fixed", "diff_relu", "diff_heaviside", "diff_factored", "dint", "tied_value")
    ],
    ("diff_relu", "gated_logsigmoid"),
]


@pytest.mark.parametrize(("old", "new"), SAME_HEADS)
def test_variants_whose_matrices_mean_the_same_heads_continue_each_other(old: str, new: str) -> None:
    same = {"heads": 2} if old in ("diff_v1", "diff_relu") else {}
    source, config = small_model(old, torch.float32, mixer=same), small_config(new, mixer=same)
    check_continues(source.config, config)
    given, values = parameters(source), parameters(adapt(source, config, SEED))
    for name in "kvo" if new == "diff_v2" else "qkvo":
        assert torch.equal(values[f"layers.1.mixer.{name}.weight"], given[f"layers.1.mixer.{name}.weight"])


@pytest.mark.parametrize(("old", "new"), [("diff_v1", "diff_uniform"), ("diff_v2", "softmax")])
def test_equal_heads_with_other_numbers_of_maps_are_refused(old: str, new: str) -> None:
    with pytest.raises(ValueError, match=r"layers\.0\.mixer\.q\.weight is .* cannot start from the weights of the old"):
        check_continues(small_config(old), small_config(new))


def test_a_lambda_learned_as_a_number_is_not_taken_for_a_logit() -> None:
    source = small_model("diff_v1", torch.float32, mixer={"heads": 2, "lam": "scalar", "lambda_init": 0.3})
    model = adapt(source, small_config("diff_v1", mixer={"heads": 2, "lam": "sigmoid", "lambda_init": 0.3}), SEED)
    for lam in model.lambdas(random_tokens(1, 4)):
        assert lam is not None
        # sigmoid(0.3), were it taken over, is 0.57.
        assert lam.item() == pytest.approx(0.3)


def trained_dex(share: float, **options: Any) -> Decoder:
    """As behind this share of a training: W_D and λ moved."""
    model = small_model("dex", torch.float32, mixer=options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in model.blocks():
            assert isinstance(block.mixer, DexMixer)
            block.mixer.w_d += 0.3 * torch.randn(block.mixer.w_d.shape, generator=generator)
            block.mixer.lam_learned += 0.5
    model.advance(share)
    return model


@pytest.mark.parametrize("share", [0.4, 1.0])
@pytest.mark.parametrize("old", [{}, {"dex_heads": (1, 3), "norm": True}])
@pytest.mark.parametrize("new", ["softmax", "dex"])
def test_a_dex_model_is_continued_from_the_function_it_computes(share: float, old: dict, new: str) -> None:
    source, tokens = trained_dex(share, **old), random_tokens(2, 9)
    expected = source(tokens)
    norm = {"norm": old.get("norm", False)}
    for options in [norm] if new == "softmax" else [norm, {**norm, **old}, {**norm, "dex_heads": (0,)}]:
        model = adapt(source, small_config(new, mixer=options), SEED)
        model.advance(0.0)  # as a training does
        # Float32, logits of order 1; without the correction they are off by more than 0.1.
        assert_close(model(tokens), expected, rtol=0, atol=1e-5)
    source.advance(0.0)
    assert (source(tokens) - expected).abs().max() > 0.1
