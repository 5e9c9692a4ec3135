"""Pruning removes exactly the second maps, counts what they needed, and ranks them by what they did."""

import json

import pytest
import torch

from diffattn.cli import main
from diffattn.data.base import Batch
from diffattn.evals.prune import Pruning, prune, sentence, window_losses
from diffattn.evals.removal import Unit, all_heads, blanked, masked, parameters_gone, second_maps
from diffattn.hub.convert import save
from diffattn.model.decoder import Decoder
from diffattn.variants import names
from support.models import random_tokens, small_model
from support.text import documents, folder_of

WIDTH, HEADS, GROUPS, LAYERS = 32, 4, 2, 2


def windows(count: int, seed: int) -> list[Batch]:
    tokens = random_tokens(2 * count, 17, seed=seed)
    rows = torch.arange(2 * count)[:, None].expand(-1, 16)
    pairs = zip(tokens.split(2), rows.split(2), strict=True)
    return [Batch(part[:, :-1], part[:, 1:], row) for part, row in pairs]


RANKING, REPORTING = windows(2, seed=1), windows(2, seed=2)


def with_lambdas(*values: float, lam: str = "scalar") -> Decoder:
    """V1 with these values of λ, one a layer (or the same in all its heads)."""
    model = small_model("diff_v1", mixer={"lam": lam})
    for block, value in zip(model.blocks(), values, strict=True):
        block.mixer.get_parameter("lambda_raw").data.fill_(value)
    return model


def pruned(model: Decoder, baseline: Decoder | None = None) -> Pruning:
    return prune(model, RANKING, REPORTING, baseline)


@pytest.mark.parametrize("lam", ["scalar", "per_head"])
def test_second_maps_that_do_nothing_are_pruned_without_any_change(lam: str):
    found = pruned(with_lambdas(0.0, 0.0, lam=lam))
    assert len(found.maps) == LAYERS * (HEADS if lam == "per_head" else 1)
    assert all(one.change == 0 and one.lam == 0 for one in found.maps)
    assert all(step.change == 0 and step.interval == 0 for step in (*found.by_loss, *found.by_lambda))
    assert "λ goes to zero in" in sentence(found) and "costs nothing that these tokens show" in sentence(found)


@pytest.mark.parametrize("matters", [0, 1])
def test_the_layer_whose_second_map_matters_goes_last(matters: int):
    values = [0.0, 0.0]
    values[matters] = 0.9
    found = pruned(with_lambdas(*values))
    for steps in (found.by_loss, found.by_lambda):
        assert [step.last for step in steps] == [None, Unit(1 - matters), Unit(matters)]
        assert steps[1].change == 0 and abs(steps[2].change) > 1e-3


def test_without_a_second_map_the_loss_is_that_of_a_model_whose_lambda_is_0():
    found = pruned(with_lambdas(0.3, 0.8))
    rebuilt = {Unit(0): with_lambdas(0.0, 0.8), Unit(1): with_lambdas(0.3, 0.0)}
    first, last = found.by_loss[1], found.by_loss[2]
    assert first.last is not None
    assert first.loss == pruned(rebuilt[first.last]).by_loss[0].loss
    assert last.loss == pruned(with_lambdas(0.0, 0.0)).by_loss[0].loss
    assert first.change == pytest.approx(first.loss - found.by_loss[0].loss, abs=1e-12)
    alone = {one.unit: one.change for one in found.maps}
    swapped = prune(with_lambdas(0.3, 0.8), REPORTING, RANKING)
    before, after = swapped.by_loss[0].loss, swapped.by_loss[1].loss
    assert alone[swapped.by_loss[1].last or Unit(-1)] == pytest.approx(after - before, abs=1e-12)


def test_version_2_without_second_maps_is_softmax_with_the_first_queries():
    model, softmax = small_model("diff_v2"), small_model("softmax", mixer={"head_dim": 8})
    weights = {name: value for name, value in model.state_dict().items() if "lambda_proj" not in name}
    for name in weights:
        if name.endswith("mixer.q.weight"):
            weights[name] = weights[name].unflatten(0, (HEADS, 2, -1))[:, 0].flatten(0, 1)
    softmax.load_state_dict(weights)
    tokens = random_tokens(2, 12)
    with torch.no_grad(), masked(model, second_maps(model)):
        torch.testing.assert_close(model(tokens), softmax(tokens), rtol=0, atol=1e-12)


def test_one_heads_second_map_leaves_the_others_alone():
    """V1 with λ per head: without head 2's second map as with λ = 0 there."""
    model, other = with_lambdas(0.5, 0.5, lam="per_head"), with_lambdas(0.5, 0.5, lam="per_head")
    other.blocks()[1].mixer.get_parameter("lambda_raw").data[2] = 0.0
    tokens = random_tokens(2, 12)
    with torch.no_grad(), masked(model, [Unit(1, 2)]):
        assert torch.equal(model(tokens), other(tokens))


def test_the_model_is_left_as_it_was():
    model, softmax = small_model("diff_v2"), small_model("softmax")
    tokens = random_tokens(2, 12)
    with torch.no_grad():
        before = model(tokens), softmax(tokens)
        pruned(model, softmax)
        assert torch.equal(model(tokens), before[0]) and torch.equal(softmax(tokens), before[1])
    with pytest.raises(KeyError), masked(model, second_maps(model)), blanked(softmax, all_heads(softmax)):
        raise KeyError
    with torch.no_grad():
        assert torch.equal(model(tokens), before[0]) and torch.equal(softmax(tokens), before[1])


def gone(model: Decoder, units: list[Unit], removal=masked) -> list[int]:
    return parameters_gone(model, units, REPORTING[0], removal)


def test_version_1_gives_back_second_queries_second_keys_and_the_vectors_of_lambda():
    head_dim = WIDTH // (2 * HEADS)
    layer = (HEADS + GROUPS) * head_dim * WIDTH + 4 * head_dim
    model = small_model("diff_v1")
    assert gone(model, [Unit(1), Unit(0)]) == [0, layer, 2 * layer]


def test_second_keys_go_with_the_last_head_that_reads_them():
    head_dim = WIDTH // (2 * HEADS)
    query, key = head_dim * WIDTH + 1, head_dim * WIDTH
    model = with_lambdas(0.5, 0.5, lam="per_head")
    found = gone(model, [Unit(0, 0), Unit(0, 2), Unit(0, 1), Unit(1, 3)])
    assert found == [0, query, 2 * query, 3 * query + key, 4 * query + key]


def test_version_2_gives_back_second_queries_and_their_lambda_since_keys_are_shared():
    head = WIDTH // HEADS * WIDTH + WIDTH
    model = small_model("diff_v2")
    assert gone(model, second_maps(model)) == [count * head for count in range(LAYERS * HEADS + 1)]


def test_a_softmax_head_is_its_queries_and_outputs_and_a_groups_keys_and_values_go_with_its_last_head():
    matrix = WIDTH // HEADS * WIDTH
    found = gone(small_model("softmax"), [Unit(0, 0), Unit(0, 3), Unit(0, 1)], blanked)
    assert found == [0, 2 * matrix, 4 * matrix, 8 * matrix]


def test_a_blanked_head_is_one_whose_output_weights_are_0():
    model, other = small_model("softmax"), small_model("softmax")
    other.blocks()[1].mixer.get_submodule("o").get_parameter("weight").data[:, 8:16] = 0.0
    tokens = random_tokens(2, 12)
    with torch.no_grad(), blanked(model, [Unit(1, 1)]):
        torch.testing.assert_close(model(tokens), other(tokens), rtol=0, atol=1e-12)


def test_the_baseline_loses_the_fewest_heads_that_are_as_many_parameters():
    model, softmax = small_model("diff_v2"), small_model("softmax")
    found = pruned(model, softmax)
    assert len(found.baseline) == len(found.by_loss) and len(found.heads) == LAYERS * HEADS
    counts = gone(softmax, [one.unit for one in sorted(found.heads, key=lambda one: one.change)], blanked)
    for ours, theirs in zip(found.by_loss, found.baseline, strict=True):
        assert theirs.parameters == counts[theirs.count] >= ours.parameters
        assert theirs.count == 0 or counts[theirs.count - 1] < ours.parameters


@pytest.mark.parametrize("name", names())
def test_a_variant_either_obeys_lambda_or_is_refused(name: str):
    """Refused: variants without λ, and those that compute something else at λ = 0 than A1 v."""
    model = small_model(name)
    try:
        units = second_maps(model)
    except ValueError as refusal:
        assert name in str(refusal)
        return
    with masked(model, units):
        for mixer, x, where in model.captured(random_tokens(1, 8)):
            first, *_ = mixer.branches(x, where)
            # Renormalising rounds.
            torch.testing.assert_close(mixer.maps(x, where), first.map.expand(1, HEADS, 8, 8), rtol=0, atol=1e-15)
    # The layer itself, and not only its maps, must do without what its second maps need.
    assert gone(model, units)[-1] > 0 or not any("lam" in part for part, _ in model.named_parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_map_that_is_renormalised_is_the_first_map_without_the_second(dtype: torch.dtype):
    found = pruned(small_model("diff_relu", dtype, mixer={"renormalise": True}))
    assert len(found.maps) == LAYERS and found.by_loss[-1].parameters > 0


def test_frozen_weights_are_counted_too():
    model, frozen = small_model("diff_v1"), small_model("diff_v1").requires_grad_(False)
    assert pruned(frozen) == pruned(model)
    assert not any(weight.requires_grad for weight in frozen.parameters())


def test_models_without_second_maps_are_refused():
    with pytest.raises(ValueError, match="softmax: there is no λ"):
        pruned(small_model("softmax"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("layers.0.gate.weight", "layer 1, diff_v1: its maps are not finite"),
        ("layers.1.gate.weight", "diff_v1: the loss is not finite"),
    ],
)
def test_what_is_wrong_with_a_broken_model_is_said(name: str, said: str):
    model = small_model("diff_v1")
    model.get_parameter(name).data[0, 0] = torch.nan
    with pytest.raises(ValueError, match=said):
        pruned(model)


def test_the_interval_of_few_windows_is_students():
    model = with_lambdas(0.9, 0.9)
    before = window_losses(model, REPORTING)
    found = pruned(model).by_loss[-1]
    with masked(model, second_maps(model)):
        added = (window_losses(model, REPORTING) - before)[:, 0] / before[:, 1]
    assert found.change == pytest.approx(float(added.mean()))
    assert len(added) == 4
    assert found.interval == pytest.approx(3.182446 * float(added.std()) / 2)


def test_the_command_writes_the_same_numbers_it_prints(tmp_path, capsys):
    texts = folder_of(tmp_path / "texts", documents(40))
    sizes = {"vocab_size": 257, "dtype": torch.float32}
    for name in ("diff_v1", "softmax"):
        save(small_model(name, **sizes), tmp_path / name / "model")
    (tmp_path / "diff_v1" / "config.json").write_text("{}")
    call = ["prune", str(tmp_path / "diff_v1" / "model"), "--source", str(texts), "--tokens", "480"]
    assert main([*call, "--baseline", str(tmp_path / "softmax" / "model")]) == 0
    printed = capsys.readouterr().out
    written = json.loads((tmp_path / "diff_v1" / "evals" / "prune.json").read_text())
    assert written["sentence"] in printed and f"{written['by_loss'][-1]['loss']:.4f}" in printed
    assert main([*call, "--json", "--out", str(tmp_path / "own.json")]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "own.json").read_text())
    assert main([*call[:-1], "48"]) == 2
    assert "2 windows of 24 tokens are too few" in capsys.readouterr().err
    save(small_model("softmax", vocab_size=300), tmp_path / "other")
    assert main([*call, "--baseline", str(tmp_path / "other")]) == 2
    assert "vocab_size: 257 in" in capsys.readouterr().err
