"""Attention maps for the report: what the model computes, rounded, and ready for JSON."""

import json

import pytest
import torch

from diffattn.evals.maps import sentence_maps
from support.models import VARIANTS, random_tokens, small_model

TOKENS = random_tokens(1, 7)[0]
LABELS = [f"w{token}" for token in TOKENS.tolist()]


@pytest.mark.parametrize("variant", VARIANTS)
def test_branches_add_up_to_the_effective_map(variant: str) -> None:
    found = sentence_maps(small_model(variant, layers=5), TOKENS, LABELS)
    assert json.loads(json.dumps(found)) == found
    assert found["tokens"] == LABELS
    assert [(head["layer"], head["head"]) for head in found["heads"]] == [
        (0, 0),
        (0, 3),
        (2, 0),
        (2, 3),
        (4, 0),
        (4, 3),
    ]
    for head in found["heads"]:
        effective = torch.tensor(head["effective"])
        assert effective.shape == (7, 7)
        assert (effective.triu(1) == 0).all()
        for branch in head["branches"]:
            # Seven entries rounded to four places: 7 * 5e-5.
            torch.testing.assert_close(torch.tensor(branch["map"]).sum(-1), torch.ones(7), rtol=0.0, atol=3.5e-4)


def test_v1_is_the_first_map_minus_lambda_times_the_second() -> None:
    model = small_model("diff_v1")
    lam = model.lambdas(TOKENS[None])[1]
    assert lam is not None
    (head,) = sentence_maps(model, TOKENS, LABELS, heads=[(1, 2)])["heads"]
    first, second = head["branches"]
    assert (first["name"], second["name"]) == ("A1", "A2")
    assert first["coefficient"] == 1.0
    assert second["coefficient"] == pytest.approx(-lam.item(), abs=5.1e-5)
    difference = torch.tensor(first["map"]) - lam.item() * torch.tensor(second["map"])
    torch.testing.assert_close(torch.tensor(head["effective"]), difference.float(), rtol=0.0, atol=2e-4)


def test_a_coefficient_that_depends_on_the_token_is_given_as_its_mean() -> None:
    model = small_model("diff_v2")
    lam = model.lambdas(TOKENS[None])[0]
    assert lam is not None
    (head,) = sentence_maps(model, TOKENS, LABELS, heads=[(0, 1)])["heads"]
    assert head["branches"][1]["coefficient"] == pytest.approx(-lam[0, :, 1].mean().item(), abs=5.1e-5)


def test_heads_and_labels_that_do_not_exist_are_refused() -> None:
    model = small_model()
    with pytest.raises(ValueError, match=r"layers \[2\]; the model has layers 0 to 1"):
        sentence_maps(model, TOKENS, LABELS, heads=[(2, 0)])
    with pytest.raises(ValueError, match="head 4 of layer 0; the layer has heads 0 to 3"):
        sentence_maps(model, TOKENS, LABELS, heads=[(0, 4)])
    with pytest.raises(ValueError, match="6 labels"):
        sentence_maps(model, TOKENS, LABELS[:-1])
