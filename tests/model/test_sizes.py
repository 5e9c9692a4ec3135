"""Sizes by name: the published parameter counts, from the config and from a model without memory."""

import pytest
import torch

from diffattn.model.decoder import Decoder
from diffattn.model.sizes import SIZES, size

# Billions of parameters with embeddings (arXiv 2410.05258, App. E; the model card of StableLM-3B-4E1T).
TOTAL = {
    "paper_830m": 0.834,
    "paper_1p4b": 1.413,
    "paper_2p8b": 2.773,
    "paper_6p8b": 6.853,
    "paper_13b": 13.10,
    "stablelm_3b": 2.795,
}


@pytest.mark.parametrize("variant", ["softmax", "diff_v1"])
@pytest.mark.parametrize("name", SIZES)
def test_cost_equals_the_parameters_of_the_meta_model(name: str, variant: str) -> None:
    with torch.device("meta"):
        model = Decoder(size(name, variant))
    assert sum(parameter.numel() for parameter in model.parameters()) == model.config.cost().parameters


@pytest.mark.parametrize("variant", ["softmax", "diff_v1"])
def test_published_sizes_have_the_published_parameters(variant: str) -> None:
    # One in the last digit shown: some are rounded, some cut off.
    for name, billions in TOTAL.items():
        last = 0.01 if name == "paper_13b" else 0.001
        assert size(name, variant).cost().parameters / 1e9 == pytest.approx(billions, abs=last), name
    assert size("paper_3b", variant).cost().other_parameters / 1e9 == pytest.approx(3.17, abs=0.01)


@pytest.mark.parametrize("name", SIZES)
def test_differential_form_differs_by_the_lambdas_and_norms_alone(name: str) -> None:
    plain, diff = SIZES[name], size(name, "diff_v1")
    head_dim = plain.width // (2 * diff.mixer.to_dict()["heads"])
    # A layer has four vectors of D for λ and one of 2 D for the norm.
    assert diff.cost().parameters - plain.cost().parameters == plain.layers * 6 * head_dim
    assert diff.cost().cache_bytes == plain.cost().cache_bytes
    assert diff.cost().flops_algebra == plain.cost().flops_algebra


def test_head_widths_are_the_published_ones() -> None:
    with torch.device("meta"):
        dims = {name: Decoder(size(name, "diff_v1")).blocks()[0].mixer.head_dim for name in ("paper_830m", "paper_3b")}
        rotary = Decoder(SIZES["stablelm_3b"]).blocks()[0].rotary_dim
    assert dims == {"paper_830m": 96, "paper_3b": 128}
    assert rotary == 20


def test_unknown_sizes_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'paper_830m'"):
        size("paper_830")
