"""metrics.jsonl, trackers and what a person sees."""

import errno
import json
import os
import sys
import types

import pytest

from diffattn.train.metrics import Display, Metrics, open_trackers
from support.training import tiny_run

ROW = {"kind": "train", "step": 1, "loss": 2.5, "machine": {"tokens_per_second": 10.0}}
LAMBDA = {"kind": "lambda", "step": 1, "layers": [{"mean": 0.2}, None]}


def test_rows_are_lines_with_sorted_keys(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write({"step": 1, "kind": "train"})
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"kind": "train", "step": 1}\n'


def test_opening_at_a_length_drops_the_rows_behind_it(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write({**ROW, "step": 1})
    length = metrics.sync()
    metrics.write({**ROW, "step": 2})
    metrics.close()
    metrics = Metrics(tmp_path / "metrics.jsonl", length)
    metrics.write({**ROW, "step": 3})
    metrics.close()
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()] == [1, 3]


def test_a_file_shorter_than_its_checkpoint_saw_is_refused(tmp_path):
    with pytest.raises(ValueError, match="rows were removed"):
        Metrics(tmp_path / "metrics.jsonl", 100)


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(ROW)
    whole = (tmp_path / "metrics.jsonl").read_bytes()

    class HalfWritten:
        def write(self, line: bytes) -> int:
            os.write(real.fileno(), line[:5])
            raise OSError(errno.ENOSPC, "No space left on device")

        def truncate(self, length: int) -> None:
            real.truncate(length)

    real = metrics._file
    monkeypatch.setattr(metrics, "_file", HalfWritten())
    with pytest.raises(OSError, match="No space"):
        metrics.write(ROW)
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_tracker_says_what_to_install(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if package == "tensorboard" else package, None)
    with pytest.raises(ValueError, match=rf"pip install 'diffattn\[{package}\]'"):
        open_trackers(tiny_run(**{package: True}), tmp_path, 0)


def test_tensorboard_gets_every_number_and_forgets_steps_that_come_again(tmp_path, monkeypatch):
    seen: list[tuple[str, float, int]] = []
    opened: dict[str, object] = {}

    class Writer:
        def __init__(self, folder: str, purge_step: int | None) -> None:
            opened.update(folder=folder, purge_step=purge_step)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            seen.append((name, value, step))

        def close(self) -> None:
            opened["closed"] = True

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    metrics = Metrics(tmp_path / "metrics.jsonl", 0, open_trackers(tiny_run(tensorboard=True), tmp_path, 3))
    metrics.write(ROW)
    metrics.write(LAMBDA)
    metrics.close()
    assert seen == [("train/loss", 2.5, 1), ("train/tokens_per_second", 10.0, 1), ("lambda/layer_0_mean", 0.2, 1)]
    assert opened == {"folder": str(tmp_path / "tensorboard"), "purge_step": 4, "closed": True}


def test_a_run_that_goes_on_is_the_same_run_for_wandb(tmp_path, monkeypatch):
    started: list[dict[str, object]] = []
    logged: list[tuple[dict[str, float], int]] = []
    service = types.SimpleNamespace(log=lambda values, step: logged.append((values, step)), finish=lambda: None)
    fake = types.ModuleType("wandb")
    fake.init = lambda **settings: started.append(settings) or service  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        for tracker in open_trackers(tiny_run(wandb=True), tmp_path, 0):
            tracker.add({"train/loss": 2.5}, 1)
            tracker.close()
    assert started[0]["id"] == started[1]["id"]
    assert logged == [({"train/loss": 2.5}, 1)] * 2


def test_a_pipe_gets_plain_lines_with_the_time_left(capsys):
    display = Display(steps=100, step=0, quiet=False)
    display.row({**ROW, "step": 10, "machine": {"tokens_per_second": 14500.0}}, step_seconds=1.0)
    display.row({"kind": "eval", "step": 10, "loss": 2.0}, step_seconds=0.0)
    display.close()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "step 10/100  loss 2.5000  14,500 tokens/s  left 1:30",
        "step 10/100  dev loss 2.0000",
    ]


def test_a_terminal_gets_a_bar_with_loss_and_time_left(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    display = Display(steps=100, step=0, quiet=False)
    display.row({**ROW, "step": 10}, step_seconds=1.0)
    display.advance(10)
    display.close()
    printed = capsys.readouterr().err
    assert "10/100" in printed
    assert "loss 2.5000" in printed
    assert "left" in printed


def test_quiet_prints_nothing(capsys):
    display = Display(steps=100, step=0, quiet=True)
    display.row(ROW, step_seconds=1.0)
    display.say("anything")
    display.close()
    assert capsys.readouterr().err == ""
