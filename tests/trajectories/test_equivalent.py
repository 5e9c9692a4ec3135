"""Settings that must not change the trajectory, compared step by step."""

import functools

import pytest
import torch

from diffattn.train import profile
from diffattn.train.trainer import train
from support.training import rows, tiny_run, without_machine


def _losses(folder, **settings):
    train(tiny_run(evals=1, **settings), folder, quiet=True)
    return [row["loss"] for row in rows(folder, "train")], [row["grad_norm"] for row in rows(folder, "train")]


@pytest.mark.parametrize("variant", ["softmax", "diff_v1", "diff_v2"])
def test_eight_micro_batches_of_one_are_one_of_eight(tmp_path, variant):
    losses, norms = [], []
    for batch_size, accumulate in ((8, 1), (1, 8), (2, 4)):
        folder = tmp_path / str(batch_size)
        run = tiny_run(variant, batch_size=batch_size, accumulate=accumulate, evals=1)
        train(run, folder, quiet=True)
        losses.append([row["loss"] for row in rows(folder, "train")])
        norms.append([row["grad_norm"] for row in rows(folder, "train")])
    # Sums in another order: float32 rounding of a step, grown over six AdamW steps of at most 5e-3.
    for other in (1, 2):
        assert losses[other] == pytest.approx(losses[0], rel=1e-5)
        assert norms[other] == pytest.approx(norms[0], rel=1e-4)
    assert losses[0][-1] != pytest.approx(losses[0][0], rel=1e-3)  # it moved, so there was something to compare


def test_the_same_config_gives_the_same_metrics_twice(tmp_path):
    for name in ("one", "two"):
        train(tiny_run(), tmp_path / name, quiet=True)
    assert without_machine(tmp_path / "one") == without_machine(tmp_path / "two")


def test_another_seed_is_another_trajectory(tmp_path):
    train(tiny_run(seed=0), tmp_path / "one", quiet=True)
    train(tiny_run(seed=1), tmp_path / "two", quiet=True)
    assert without_machine(tmp_path / "one") != without_machine(tmp_path / "two")


def test_recomputed_activations_change_nothing(tmp_path):
    assert _losses(tmp_path / "kept") == _losses(tmp_path / "recomputed", checkpoint_activations=True)


def test_metrics_do_not_depend_on_when_checkpoints_are_written(tmp_path):
    assert _losses(tmp_path / "end") == _losses(tmp_path / "every", save_every=1)


def test_bfloat16_stays_near_float32(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "has_bfloat16", lambda device: True)
    exact, _ = _losses(tmp_path / "float32", precision="float32")
    rounded, _ = _losses(tmp_path / "bfloat16", precision="bfloat16")
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.02)  # eight bits of mantissa: 0.4 % a product


@pytest.mark.slow
def test_a_compiled_model_follows_the_same_trajectory(tmp_path, monkeypatch):
    # The graph as Inductor would get it, without its minutes of C++ compilation.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    exact, _ = _losses(tmp_path / "eager")
    compiled, _ = _losses(tmp_path / "compiled", compile=True)
    assert compiled == pytest.approx(exact, rel=1e-4)
