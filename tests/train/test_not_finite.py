"""Runs whose numbers stop being finite: they end, and say at which step, in which layer, and where to go back to."""

import json

import pytest
import torch

from diffattn.train import trainer
from diffattn.train.trainer import Outcome, train
from support.training import rows, tiny_run


def _poison_at(monkeypatch, step, name):
    """Make a weight NaN just before update number `step`."""
    update = trainer._Loop._update

    def poisoned(loop):
        if loop.step == step - 1:
            with torch.no_grad():
                loop.model.get_parameter(name).view(-1)[0] = float("nan")
        return update(loop)

    monkeypatch.setattr(trainer._Loop, "_update", poisoned)


def test_a_loss_that_is_not_finite_names_step_layer_and_checkpoint(tmp_path, monkeypatch, capsys):
    _poison_at(monkeypatch, 5, "layers.1.gate.weight")
    outcome = train(tiny_run(save_every=2), tmp_path)
    assert outcome == Outcome("non-finite", 5, None)
    done = json.loads((tmp_path / "done").read_text())
    assert done["status"] == "non-finite"
    assert done["step"] == 5
    assert done["loss"] is None
    assert done["layer"] == "layers.1.gate"
    assert done["checkpoint"] == "checkpoints/step-000004"
    message = capsys.readouterr().err
    assert "step 5 of 6 is not finite; it began in layers.1.gate" in message
    assert str(tmp_path / "checkpoints" / "step-000004") in message
    assert train(tiny_run(save_every=2), tmp_path) == outcome


def test_a_learning_rate_far_too_high_ends_as_non_finite(tmp_path):
    run = tiny_run(steps=40, learning_rate=1e30, clip=None, warmup=0.0, weight_decay=0.0, evals=1)
    outcome = train(run, tmp_path, quiet=True)
    assert outcome.status == "non-finite"
    assert json.loads((tmp_path / "done").read_text())["layer"]
    assert [row["step"] for row in rows(tmp_path, "train")] == list(range(1, outcome.step))


@pytest.mark.parametrize(("variant", "steps"), [("diff_v1", 6), ("diff_v1", 1), ("softmax", 6)])
def test_weights_that_an_update_blew_up_end_the_run_at_its_evaluation(tmp_path, capsys, variant, steps):
    """The step's own loss was finite; what the weights are after it shows in the dev loss."""
    run = tiny_run(variant, steps=steps, evals=steps, learning_rate=1e12, clip=None, warmup=0.0)
    outcome = train(run, tmp_path)
    assert outcome == Outcome("non-finite", 1, None)
    done = json.loads((tmp_path / "done").read_text())
    assert (done["status"], done["step"], done["loss"], done["checkpoint"]) == ("non-finite", 1, None, None)
    assert done["layer"].startswith("layers.0")
    assert f"the dev loss after step 1 of {steps} is not finite; it began in layers.0" in capsys.readouterr().err
    assert [row["kind"] for row in rows(tmp_path)] == ["train"]
    assert not (tmp_path / "model").exists() and not (tmp_path / "evals").exists()
    assert train(run, tmp_path, quiet=True) == outcome


@pytest.mark.parametrize("rate", [1.0, 1e4, 1e12])
def test_large_values_whose_loss_is_finite_are_written_as_json(tmp_path, rate):
    """Weights may grow until squares overflow: those numbers are null, and the run goes on."""
    outcome = train(tiny_run(evals=6, learning_rate=rate, clip=None, warmup=0.0), tmp_path, quiet=True)
    written = (tmp_path / "metrics.jsonl").read_text()
    assert outcome.status in ("finished", "non-finite") and "NaN" not in written and "Infinity" not in written
