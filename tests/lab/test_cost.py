"""`diffattn cost`: models of equal size and of a share of the parameters, and what is said of them."""

import json
import re
from pathlib import Path

import pytest

from diffattn import recipes
from diffattn.cli import main
from diffattn.lab.cost import cost, shares, sized
from diffattn.lab.footprint import Setting
from diffattn.lab.plan import resolve
from diffattn.model.config import ModelConfig
from diffattn.model.sizes import size
from diffattn.variants.base import MixerConfig


def small(**fields: int) -> ModelConfig:
    sizes = {"vocab_size": 64, "width": 64, "layers": 3, "context": 32, "ffn_width": 170, **fields}
    return ModelConfig(**sizes, mixer=MixerConfig.from_dict({"name": "softmax", "heads": 4}))


@pytest.mark.parametrize("name", ["ab_124m", "paper_6p8b", "paper_13b"])
@pytest.mark.parametrize("variant", ["diff_v1", "diff_v2", "sigmoid"])
def test_sizes_have_the_parameters_that_they_promise(name: str, variant: str) -> None:
    baseline, equal, narrower, shallower = (one.model for one in sized(size(name), [variant], 0.62))
    # Half a percent is what matching leaves alone, so that tensors stay equal.
    assert equal.cost().other_parameters == pytest.approx(baseline.cost().other_parameters, rel=0.005)
    for model in (narrower, shallower):
        assert model.cost().parameters == pytest.approx(0.62 * baseline.cost().parameters, rel=0.005)
    assert narrower.layers == baseline.layers and narrower.width < baseline.width
    assert shallower.width == baseline.width and shallower.layers < baseline.layers


def test_narrower_models_keep_the_width_of_a_head_and_the_share_of_its_group() -> None:
    baseline = size("ab_124m")
    grouped = ModelConfig.from_dict(
        {**baseline.to_dict(), "mixer": {"name": "softmax", "heads": 12, "kv_heads": 4}, "width": 768}
    )
    _, equal, narrower, _ = (one.model for one in sized(grouped, ["diff_v1"], 0.62))
    before, after = equal.mixer.to_dict(), narrower.mixer.to_dict()
    assert after["heads"] / after["kv_heads"] == before["heads"] / before["kv_heads"]
    assert narrower.width / after["heads"] == equal.width / before["heads"]


def test_a_share_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match="share is 62"):
        sized(small(), ["diff_v1"], 62)


def test_a_share_below_the_least_that_a_variant_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    # Embeddings alone are more than a thousandth of such a model.
    assert main(["cost", "--model.width", "48", "--model.layers", "2", "--share", "0.001"]) == 2
    told = capsys.readouterr().err
    asked = re.search(r"diff_v1 with fewer heads of the same width cannot have as few as (\S+) parameters", told)
    least = re.search(r"it has (\S+) at least; give a larger share", told)
    assert asked and least
    assert 0 < int(asked[1].replace(",", "")) < int(least[1].replace(",", ""))
    assert "native" not in told


def test_an_attention_larger_than_the_whole_baseline_is_refused_in_the_commands_own_words() -> None:
    with pytest.raises(ValueError, match=r"diff_v2 with heads as wide cannot .* a larger feed-forward"):
        sized(small(ffn_width=4), ["diff_v2"], 0.62)


def test_an_implementation_that_does_not_serve_a_variant_is_refused() -> None:
    baseline = ModelConfig(mixer=MixerConfig.from_dict({"name": "softmax", "heads": 6, "impl": "blocked"}))
    with pytest.raises(ValueError, match="impl: got 'blocked'"):
        sized(baseline, ["sigmoid"], 0.62)


def test_parts_of_a_peak_add_up_and_sentences_compare_with_the_baseline() -> None:
    found = cost(small(), ["diff_v1"], Setting(batch_size=2))
    for arm in found["arms"]:
        for mode in ("training", "inference"):
            assert sum(shares(arm, mode).values()) == pytest.approx(1)
    base, equal = found["arms"][:2]
    ratio = equal["training"]["peak_bytes"] / base["training"]["peak_bytes"]
    assert f"{ratio:.0%} of the memory in training" in found["sentences"][0]
    assert len(found["sentences"]) == 3


def test_the_command_prints_a_table_and_writes_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--model.width", "48", "--model.layers", "2", "--model.context", "16", "--batch-size", "2"]
    assert main(["cost", *sizes, "--impl", "reference", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "cost.json").read_text(encoding="utf-8"))
    assert [arm["label"] for arm in found["arms"]] == ["baseline", "equal size", "62%, narrower", "62%, shallower"]
    assert {arm["model"]["mixer"]["impl"] for arm in found["arms"]} == {"reference"}
    printed = capsys.readouterr().out
    assert "A TRAINING STEP of 2 x 16 tokens, float32" in printed
    assert all(sentence in printed for sentence in found["sentences"])


def test_a_recipe_stands_for_the_baseline_of_its_first_task(tmp_path: Path) -> None:
    assert main(["cost", "smoke", "--variants", "diff_v2", "--out", str(tmp_path / "x.json")]) == 0
    found = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    task = recipes.get("smoke").tasks[0]
    assert found["arms"][0]["model"] == resolve(task)[task.baseline].model.to_dict()
    assert found["arms"][1]["variant"] == "diff_v2"


def test_what_is_neither_a_size_nor_a_recipe_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "ab_125m"]) == 2
    assert "'ab_125m' is neither a size nor a recipe, did you mean 'ab_124m'?" in capsys.readouterr().err
