"""Runs that continue a trained model: as another attention, and training only some of its parameters."""

import dataclasses
import re
import signal
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from diffattn.data import open_data
from diffattn.evals.perplexity import evaluate
from diffattn.hub import convert
from diffattn.model.decoder import build
from diffattn.model.stretch import stretched
from diffattn.train import trainer
from diffattn.train.checkpoint import found, load_file
from diffattn.train.start import starting_model, trained_parameters
from diffattn.train.trainer import train
from diffattn.variants.dex import DexMixer
from support.training import tiny_run, without_machine

OWN = ("layers.*.mixer.w_d", "layers.*.mixer.lam_learned")


@pytest.fixture(scope="module")
def softmax(tmp_path_factory) -> str:
    """The model folder of a finished softmax run."""
    folder = tmp_path_factory.mktemp("softmax")
    train(tiny_run("softmax"), folder, quiet=True)
    return str(folder / "model")


def moved(folder: Path, before: str) -> set[str]:
    """Names of the parameters that are other than in the model they started from, or are not there."""
    old, new = (dict(convert.load(path).named_parameters()) for path in (before, folder / "model"))
    return {name for name in new if name not in old or not torch.equal(new[name], old[name])}


@pytest.mark.parametrize("variant", ["softmax1", "diff_v2", "dex"])
def test_a_softmax_model_is_continued_as_another_attention(softmax, tmp_path, variant):
    run = tiny_run(variant, init_from=softmax, train_only=("*",))
    assert train(run, tmp_path, quiet=True).status == "finished"
    names = {name for name, _ in build(run.model).named_parameters()}
    assert moved(tmp_path, softmax) == names


def test_only_what_a_pattern_matches_is_trained(softmax, tmp_path):
    train(tiny_run("softmax", init_from=softmax, train_only=("layers.*.mixer.o.weight",)), tmp_path, quiet=True)
    assert moved(tmp_path, softmax) == {"layers.0.mixer.o.weight", "layers.1.mixer.o.weight"}
    state = load_file(tmp_path / "checkpoints" / "step-000006" / "optimizer.safetensors")
    assert {name.partition(".")[2] for name in state if name != "updates"} == moved(tmp_path, softmax)


def test_dex_trains_what_it_adds_unless_told_otherwise(softmax, tmp_path):
    train(tiny_run("dex", init_from=softmax), tmp_path, quiet=True)
    names = {f"layers.{layer}.mixer.{name}" for layer in (0, 1) for name in ("w_d", "lam_learned")}
    assert moved(tmp_path, softmax) == names
    for block in convert.load(tmp_path / "model").blocks():
        assert isinstance(block.mixer, DexMixer)
        # Zeros at the start: the ramp has moved them.
        assert block.mixer.w_d.abs().max() > 0
        assert block.mixer.lam_learned != 0


def test_a_layer_is_told_which_share_of_the_training_lies_behind(softmax, tmp_path, monkeypatch):
    seen = []
    loss = trainer._Loop._loss
    monkeypatch.setattr(
        trainer._Loop,
        "_loss",
        lambda loop, part: seen.append(float(loop.model.blocks()[1].mixer.progress)) or loss(loop, part),
    )
    train(tiny_run("dex", init_from=softmax), tmp_path, quiet=True)
    assert seen == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6])
    assert [float(block.mixer.progress) for block in convert.load(tmp_path / "model").blocks()] == [1, 1]


def test_a_finished_dex_model_is_trained_on_from_what_it_computes(softmax, tmp_path):
    train(tiny_run("dex", init_from=softmax, learning_rate=0.05), tmp_path, quiet=True)
    finished, run = convert.load(tmp_path / "model"), tiny_run("dex", init_from=str(tmp_path / "model"))
    data = open_data(run.data, context=16, batch_size=4, seed=0)
    tokens = data.batch(0).tokens
    model = starting_model(run, data, torch.device("cpu"))
    model.advance(0.0)
    expected = finished(tokens)
    # Float32, logits of order 1.
    assert_close(model(tokens), expected, rtol=0, atol=1e-5)
    finished.advance(0.0)
    assert (finished(tokens) - expected).abs().max() > 1e-3


def test_the_last_evaluation_is_that_of_the_saved_model(softmax, tmp_path):
    run = tiny_run("dex", init_from=softmax, learning_rate=0.05)
    outcome = train(run, tmp_path, quiet=True)
    data = open_data(run.data, context=16, batch_size=4, seed=0)
    assert evaluate(convert.load(tmp_path / "model"), data.evaluation("dev")).loss == pytest.approx(outcome.loss)


def test_an_interrupted_run_with_frozen_parameters_goes_on_to_the_same_bits(softmax, tmp_path, monkeypatch):
    run = tiny_run("dex", init_from=softmax, train_only=(*OWN, "layers.1.mixer.v.weight"))
    train(run, tmp_path / "whole", quiet=True)
    update = trainer._Loop._update

    def interrupted(loop):
        if loop.step == 2:
            signal.raise_signal(signal.SIGINT)
        return update(loop)

    with monkeypatch.context() as patch:
        patch.setattr(trainer._Loop, "_update", interrupted)
        assert train(run, tmp_path / "parts", quiet=True).status == "interrupted"
    assert [path.name for path in found(tmp_path / "parts" / "checkpoints")] == ["step-000003"]
    train(run, tmp_path / "parts", quiet=True)
    assert without_machine(tmp_path / "parts") == without_machine(tmp_path / "whole")
    for file in ("model/model.safetensors", "checkpoints/step-000006/optimizer.safetensors"):
        one, other = load_file(tmp_path / "whole" / file), load_file(tmp_path / "parts" / file)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_another_choice_of_parameters_is_another_run(softmax, tmp_path):
    run = tiny_run("dex", init_from=softmax)
    train(run, tmp_path, quiet=True)
    other = dataclasses.replace(run, train=dataclasses.replace(run.train, train_only=("*",)))
    with pytest.raises(ValueError, match=r"train\.train_only is \[\] there and \['\*'\] here"):
        train(other, tmp_path, quiet=True)


def test_a_pattern_without_a_parameter_is_refused_with_the_names(softmax, tmp_path):
    run = tiny_run("softmax", init_from=softmax, train_only=("layers.0.mixer.o.wieght",))
    with pytest.raises(ValueError, match=r"no parameter is called 'layers.0.mixer.o.wieght'; did you mean 'layers.0.m"):
        train(run, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_dex_without_a_model_to_start_from_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"dex trains from a loaded model only; set train\.init_from"):
        train(tiny_run("dex"), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_model_that_differs_beside_its_attention_is_refused(softmax, tmp_path):
    run = tiny_run("dex", init_from=softmax, model={"ffn_width": 32})
    with pytest.raises(ValueError, match=r"model\.ffn_width is 24 there and 32 here"):
        train(run, tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("variant", "patterns", "share"),
    [
        ("diff_v1", (), r".*"),
        ("diff_v1", ("layers.0.*", "norm.weight"), r"layers\.0\..*|norm\.weight"),
        ("dex", (), r".*\.(w_d|lam_learned)"),
        ("dex", ("*",), r".*"),
    ],
)
def test_trained_parameters_are_counted(variant, patterns, share):
    run = tiny_run(variant, train_only=patterns)
    named = build(run.model).named_parameters()
    assert trained_parameters(run) == sum(value.numel() for name, value in named if re.fullmatch(share, name))


@pytest.mark.slow
def test_frozen_parameters_compile(softmax, tmp_path):
    eager, compiled = (tiny_run("dex", init_from=softmax, compile=way) for way in (False, True))
    one, other = (train(run, tmp_path / str(run.train.compile), quiet=True).loss for run in (eager, compiled))
    assert other == pytest.approx(one, rel=1e-4)


@pytest.mark.parametrize("scaling", ["none", "yarn"])
def test_a_model_is_continued_at_a_longer_context(softmax, tmp_path, scaling):
    longer = {"context": 32, "rope_scaling": scaling, "rope_factor": 1.0 if scaling == "none" else 2.0}
    run = tiny_run("softmax", model=longer, init_from=softmax)
    data = open_data(run.data, context=32, batch_size=4, seed=0)
    tokens = data.batch(0).tokens
    start = starting_model(run, data, torch.device("cpu"))
    # The same function of the same weights.
    assert torch.equal(start(tokens), stretched(convert.load(softmax), 32, scaling)(tokens))
    assert train(run, tmp_path, quiet=True).status == "finished"
    assert convert.load(tmp_path / "model").config == run.model


def test_a_longer_context_must_fit_the_scaling(softmax, tmp_path):
    wrong = {"context": 32, "rope_scaling": "linear", "rope_factor": 3.0}
    with pytest.raises(ValueError, match=r"rope_factor is 2\.0 there and 3\.0 here"):
        train(tiny_run("softmax", model=wrong, init_from=softmax), tmp_path, quiet=True)
