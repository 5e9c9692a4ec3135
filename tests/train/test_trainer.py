"""A run from an empty folder to its end, and the ways it can end early."""

import dataclasses
import errno
import json
import random
import signal

import pytest
import torch

from diffattn import files
from diffattn.data import SyntheticData, TextData
from diffattn.hub import convert
from diffattn.train import checkpoint, trainer
from diffattn.train.trainer import Outcome, train
from support.training import rows, tiny_run


def _checkpoints(folder):
    return [path.name for path in checkpoint.found(folder / "checkpoints")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train(tiny_run(), folder, quiet=True)


def test_a_run_leaves_everything_that_evaluation_and_report_read(finished):
    folder, outcome = finished
    assert outcome.status == "finished"
    assert outcome.step == 6
    assert {path.name for path in folder.iterdir()} == {
        "checkpoints",
        "config.json",
        "done",
        "environment.json",
        "evals",
        "metrics.jsonl",
        "model",
    }
    assert json.loads((folder / "config.json").read_text()) == tiny_run().to_dict()
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["threads"] == 1
    assert environment["precision"] == "float32"
    assert environment["peak_gflops"] > 0


def test_every_step_has_its_training_row(finished):
    folder, _ = finished
    flops = tiny_run().model.cost().flops_algebra
    train_rows = rows(folder, "train")
    assert [row["step"] for row in train_rows] == [1, 2, 3, 4, 5, 6]
    assert [row["tokens"] for row in train_rows] == [64, 128, 192, 256, 320, 384]
    assert [row["flops"] for row in train_rows] == [flops * row["tokens"] for row in train_rows]
    assert train_rows[-1]["learning_rate"] == pytest.approx(5e-4)
    assert all(row["grad_norm"] > 0 for row in train_rows)
    seconds = [row["machine"]["seconds"] for row in train_rows]
    assert seconds == sorted(seconds)
    assert all(0 < row["machine"]["share_of_peak"] < 1 for row in train_rows)
    assert all(row["machine"]["peak_memory_bytes"] > 1e6 for row in train_rows)


def test_milestones_have_a_dev_row_and_lambda_of_each_layer(finished):
    folder, outcome = finished
    evals, lambdas = rows(folder, "eval"), rows(folder, "lambda")
    assert [row["step"] for row in evals] == [row["step"] for row in lambdas] == [3, 6]
    assert all(row["split"] == "dev" and row["count"] > 0 for row in evals)
    assert evals[-1]["loss"] == outcome.loss
    for row in lambdas:
        assert len(row["layers"]) == 2
        assert all(layer["min"] <= layer["mean"] <= layer["max"] for layer in row["layers"])
        assert all(layer["below_0"] == layer["above_1"] == 0 for layer in row["layers"])


def test_milestones_tell_how_large_the_largest_values_are(finished):
    found = [row["outliers"] for row in rows(finished[0], "eval")]
    # A two-hundredth of 384 tokens is less than a window of 16.
    assert [outliers["tokens"] for outliers in found] == [16, 16]
    for outliers in found:
        assert outliers["hidden"]["count"] == 16 * 2 * 16
        assert outliers["hidden"]["top1"] >= outliers["hidden"]["median"] > 0
        assert 0 < outliers["first_token"] <= 1
        assert "layers" not in outliers


def test_the_end_is_recorded_and_the_model_is_the_last_checkpoint(finished):
    folder, outcome = finished
    done = json.loads((folder / "done").read_text())
    assert done["status"] == "finished"
    assert done["step"] == 6
    assert done["tokens"] == 384
    assert done["layer"] is None
    assert done["loss"] == outcome.loss == json.loads((folder / "evals" / "dev.json").read_text())["loss"]
    saved = checkpoint.load_file(folder / "checkpoints" / "step-000006" / "model.safetensors")
    weights = dict(convert.load(folder / "model").named_parameters())
    assert saved.keys() == weights.keys()
    assert all(torch.equal(saved[name], weights[name]) for name in saved)


def test_a_finished_run_is_not_run_again(finished):
    folder, outcome = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert train(tiny_run(), folder, quiet=True) == outcome
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_the_end_of_another_run_is_not_taken_for_this_one(finished):
    folder, _ = finished
    with pytest.raises(ValueError, match=r"another run: train\.learning_rate is 0\.005 there and 0\.01 here"):
        train(tiny_run(learning_rate=0.01), folder, quiet=True)


def test_settings_that_change_no_number_may_change(finished):
    folder, outcome = finished
    assert train(tiny_run(keep=5, save_every=2), folder, quiet=True) == outcome


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    train(tiny_run(save_every=1, keep=3), tmp_path, quiet=True)
    assert _checkpoints(tmp_path) == ["step-000004", "step-000005", "step-000006"]


def test_lambda_of_each_head_is_reported_where_heads_differ(tmp_path, finished):
    train(tiny_run("diff_v2", evals=1, steps=1), tmp_path, quiet=True)
    for layer in rows(tmp_path, "lambda")[0]["layers"]:
        assert len(layer["heads"]) > 1
        assert sum(layer["heads"]) / len(layer["heads"]) == pytest.approx(layer["mean"])
    assert not any("heads" in layer for row in rows(finished[0], "lambda") for layer in row["layers"])


def test_softmax_has_no_lambda_to_report(tmp_path):
    train(tiny_run("softmax", evals=1, steps=1), tmp_path, quiet=True)
    assert [row["layers"] for row in rows(tmp_path, "lambda")] == [[None, None]]


def _interrupt_at(monkeypatch, step, kind):
    update = trainer._Loop._update

    def with_signal(loop):
        if loop.step == step - 1:
            signal.raise_signal(kind)
        return update(loop)

    monkeypatch.setattr(trainer._Loop, "_update", with_signal)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_saves_and_says_how_to_go_on(tmp_path, monkeypatch, capsys, kind):
    before = signal.getsignal(kind)
    with monkeypatch.context() as patch:
        _interrupt_at(patch, 2, kind)
        assert train(tiny_run(), tmp_path) == Outcome("interrupted", 2, None)
    assert signal.getsignal(kind) is before
    assert _checkpoints(tmp_path) == ["step-000002"]
    assert not (tmp_path / "done").exists()
    message = capsys.readouterr().err
    assert "stopped at step 2 of 6" in message
    assert "step-000002; the same command goes on from there" in message
    assert train(tiny_run(), tmp_path, quiet=True).status == "finished"
    assert [row["step"] for row in rows(tmp_path, "train")] == [1, 2, 3, 4, 5, 6]


def test_a_second_ctrl_c_breaks_off(tmp_path, monkeypatch):
    update = trainer._Loop._update

    def twice(loop):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return update(loop)

    monkeypatch.setattr(trainer._Loop, "_update", twice)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_run(), tmp_path, quiet=True)


def _snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("module", "failing"), [(checkpoint, "save_file"), (files, "_to_disk")])
def test_a_full_disk_keeps_the_checkpoint_before(tmp_path, monkeypatch, module, failing):
    real, calls = getattr(module, failing), []

    def full(*arguments):
        if (tmp_path / "checkpoints" / "step-000002").exists():
            calls.append(arguments)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, failing, full)
        with pytest.raises(ValueError, match=r"cannot write the run folder .*: No space left on device") as caught:
            train(tiny_run(save_every=2), tmp_path, quiet=True)
    assert calls
    assert "\n" not in str(caught.value)
    assert _checkpoints(tmp_path) == ["step-000002"]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000002"]
    assert train(tiny_run(save_every=2), tmp_path, quiet=True).status == "finished"


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write the run folder .*file/run: .*choose a folder"):
        train(tiny_run(), tmp_path / "file" / "run", quiet=True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"train": {"learning_rate": 0.1}}, r"train\.learning_rate is 0\.005 there and 0\.1 here"),
        ({"model": {"ffn_width": 32}}, r"model\.ffn_width is 24 there and 32 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"variant": "softmax"}, r"model\.mixer\.\w+ is"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_left_alone(tmp_path, monkeypatch, change, named):
    with monkeypatch.context() as patch:
        _interrupt_at(patch, 2, signal.SIGINT)
        train(tiny_run(), tmp_path, quiet=True)
    before = _snapshot(tmp_path)
    other = tiny_run(
        change.get("variant", "diff_v1"),
        seed=change.get("seed", 0),
        model=change.get("model"),
        **change.get("train", {}),
    )
    with pytest.raises(ValueError, match=named):
        train(other, tmp_path, quiet=True)
    assert _snapshot(tmp_path) == before


def test_a_checkpoint_of_other_data_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        _interrupt_at(patch, 2, signal.SIGINT)
        train(tiny_run(), tmp_path, quiet=True)
    task = SyntheticData(task="recall", keys=8, values=8, pairs=3, heldout_sequences=16)
    with pytest.raises(ValueError, match=r"belongs to another run: data\."):
        train(dataclasses.replace(tiny_run(), data=task), tmp_path, quiet=True)


def test_a_vocabulary_smaller_than_the_data_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"model\.vocab_size is 8, but the data has \d+ token ids"):
        train(tiny_run(model={"vocab_size": 8}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_run_starts_from_a_given_model(finished, tmp_path):
    folder, outcome = finished
    run = tiny_run(steps=1, learning_rate=1e-12, init_from=str(folder / "model"))
    assert train(run, tmp_path, quiet=True).loss == pytest.approx(outcome.loss, rel=1e-6)


def test_a_starting_model_of_another_vocabulary_is_refused(finished, tmp_path):
    folder, _ = finished
    run = tiny_run(model={"vocab_size": 32}, init_from=str(folder / "model"))
    with pytest.raises(ValueError, match=r"model\.vocab_size is 24 there and 32 here"):
        train(run, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_starting_model_of_another_tokenizer_is_refused(finished, tmp_path):
    folder, _ = finished
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    convert.save(convert.load(folder / "model"), tmp_path / "model", tokenizer=tokenizer)
    run = tiny_run(init_from=str(tmp_path / "model"))
    with pytest.raises(ValueError, match=r"tokenizer is tokenizer.json \w+ there and without a tokenizer.json here"):
        train(run, tmp_path / "run", quiet=True)


def test_a_folder_without_a_model_to_start_from_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no model folder"):
        train(tiny_run(init_from=str(tmp_path)), tmp_path / "run", quiet=True)


def _subwords(folder, seed):
    """Text of its own made-up words, and the run that trains on it with a vocabulary of its own."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(60)]
    text = "\n\n".join(" ".join(draw.choices(words, k=40)) for _ in range(300))
    folder.mkdir()
    (folder / "text.txt").write_text(text)
    data = TextData(source=str(folder), tokenizer="bpe", vocab_size=280)
    return dataclasses.replace(tiny_run(steps=1, evals=1, model={"vocab_size": 280}), data=data)


def test_a_model_takes_its_tokenizer_along_and_starts_only_runs_that_share_it(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFFATTN_CACHE", str(tmp_path / "cache"))
    run, other = _subwords(tmp_path / "one", 1), _subwords(tmp_path / "two", 2)
    train(run, tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "model" / "tokenizer.json").exists()
    assert rows(tmp_path / "run", "eval")[0]["bits_per_byte"] > 0

    def from_there(config):
        return dataclasses.replace(
            config, train=dataclasses.replace(config.train, init_from=str(tmp_path / "run" / "model"))
        )

    assert train(from_there(run), tmp_path / "again", quiet=True).status == "finished"
    with pytest.raises(ValueError, match=r"tokenizer is tokenizer.json \w+ there and tokenizer.json \w+ here"):
        train(from_there(other), tmp_path / "refused", quiet=True)


def test_text_shorter_than_a_batch_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFFATTN_CACHE", str(tmp_path / "cache"))
    run = _subwords(tmp_path / "one", 1)
    run = dataclasses.replace(run, train=dataclasses.replace(run.train, batch_size=100_000))
    with pytest.raises(ValueError, match="give more text, or lower the batch size"):
        train(run, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
