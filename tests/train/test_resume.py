"""A run that is killed goes on to the same bits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diffattn.train.checkpoint import load_file
from diffattn.train.trainer import train
from support.training import rows, tiny_run, without_machine

# The process dies in update number 5, when the checkpoint of step 3 and the row of step 4 are on the disk.
DIES = """
import os, signal, sys
from pathlib import Path
import torch
from diffattn.train import trainer
from support.training import tiny_run
update = trainer._Loop._update
def deadly(loop):
    if loop.step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return update(loop)
trainer._Loop._update = deadly
trainer.train(tiny_run(sys.argv[2], save_every=3), Path(sys.argv[1]), quiet=True)
"""


def _killed_and_resumed(folder: Path, variant: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    killed = subprocess.run([sys.executable, "-c", DIES, str(folder), variant], env=environment)
    assert killed.returncode == -9
    assert [row["step"] for row in rows(folder, "train")] == [1, 2, 3, 4]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000003"]
    train(tiny_run(variant, save_every=3), folder, quiet=True)


@pytest.mark.parametrize("variant", ["diff_v1", "diff_v2"])
def test_three_steps_a_kill_and_three_steps_are_six_steps(tmp_path, variant):
    train(tiny_run(variant, save_every=3), tmp_path / "whole", quiet=True)
    _killed_and_resumed(tmp_path / "killed", variant)
    assert without_machine(tmp_path / "killed") == without_machine(tmp_path / "whole")
    for file in ("model/model.safetensors", "checkpoints/step-000006/optimizer.safetensors"):
        one, other = load_file(tmp_path / "whole" / file), load_file(tmp_path / "killed" / file)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert (tmp_path / "whole" / "evals" / "dev.json").read_bytes() == (
        tmp_path / "killed" / "evals" / "dev.json"
    ).read_bytes()


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path):
    train(tiny_run(), tmp_path / "whole", quiet=True)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n{"kind": "tr')
    train(tiny_run(), tmp_path / "begun", quiet=True)
    assert without_machine(tmp_path / "begun") == without_machine(tmp_path / "whole")


def test_what_a_killed_process_left_half_written_is_no_checkpoint(tmp_path):
    (tmp_path / "checkpoints" / ".step-000006.partial").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".step-000006.partial" / "model.safetensors").write_bytes(b"half")
    assert train(tiny_run(), tmp_path, quiet=True).status == "finished"
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000006"]


def test_a_damaged_checkpoint_says_how_to_go_on_from_the_one_before(tmp_path):
    train(tiny_run(save_every=3), tmp_path, quiet=True)
    (tmp_path / "done").unlink()
    damaged = tmp_path / "checkpoints" / "step-000006"
    (damaged / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"step-000006 cannot be read .*remove that folder to go on"):
        train(tiny_run(save_every=3), tmp_path, quiet=True)
    for file in damaged.iterdir():
        file.unlink()
    damaged.rmdir()
    assert train(tiny_run(save_every=3), tmp_path, quiet=True).step == 6
    assert [row["step"] for row in rows(tmp_path, "train")] == [1, 2, 3, 4, 5, 6]
