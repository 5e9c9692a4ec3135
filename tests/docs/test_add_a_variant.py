"""The page about variants of one's own: its code is a variant, and its commands do what they say."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import diffattn
from diffattn.cli import main
from diffattn.hub.convert import load
from diffattn.lab.pool import Pool
from diffattn.lab.runs import judged_runs
from diffattn.recipes.added import with_variants
from diffattn.variants import get, load_plugin, names
from support.plans import tiny_plan, tiny_task
from support.text import documents, folder_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "add-a-variant.md").read_text()
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = {line.split()[1]: line.split()[1:] for line in re.findall(r"^diffattn .*", PAGE, flags=re.MULTILINE)}
(CONTRACT,) = re.findall(r"^pytest (.*)", PAGE, flags=re.MULTILINE)


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's file in the folder where its commands are run; other tests do not get to know the variant."""
    monkeypatch.setattr("diffattn.variants.base._REGISTER", {name: get(name) for name in names()})
    monkeypatch.setattr("diffattn.variants.plugins._LOADED", [])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_attention.py").write_text(CODE)
    return tmp_path / "my_attention.py"


def smaller(verb: str) -> list[str]:
    """A command of the page with fewer steps on a little text."""
    on = {"train": ["--model.context", "32", "--data.source", "texts"], "eval": ["--source", "texts"]}
    return [{"200": "3", "20000": "96"}.get(word, word) for word in COMMANDS[verb]] + on[verb]


def test_the_code_is_under_60_lines():
    assert len(CODE.splitlines()) < 60


def test_the_variant_is_listed(capsys: pytest.CaptureFixture[str]):
    assert main(COMMANDS["info"]) == 0
    assert "softmax(c tanh(S / c)) V" in capsys.readouterr().out


def test_the_formula():
    load_plugin("my_attention.py")
    layer = diffattn.layer("softcap", width=16, heads=2).double()
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    with torch.no_grad():
        q, k = (getattr(layer.mixer, part)(x).unflatten(-1, (2, 8)).transpose(1, 2) for part in ("q", "k"))
        capped = 5 * torch.tanh(q @ k.mT / 8**0.5 / 5)
        expected = capped.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).softmax(-1)
        torch.testing.assert_close(layer.maps(x, rope=False), expected, rtol=0, atol=1e-12)


def test_it_trains_and_is_evaluated_and_without_the_plugin_its_name_is_said_to_be_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folder_of(tmp_path / "texts", documents(40))
    assert main(smaller("train")) == 0
    assert main(smaller("eval")) == 0
    config = json.loads((tmp_path / "runs/softcap/config.json").read_text())
    assert config["model"]["mixer"]["cap"] == 8.0
    caps = load("runs/softcap/model").blocks()[0].mixer.get_parameter("cap")
    assert (caps != 8.0).all() and (caps - 8.0).abs().max() < 1
    monkeypatch.setattr("diffattn.variants.base._REGISTER", {n: get(n) for n in names() if n != "softcap"})
    capsys.readouterr()
    assert main(["eval", "runs/softcap/model", "--source", "texts"]) == 2
    said = capsys.readouterr().err
    assert "there is no variant 'softcap'" in said and "--plugin my_attention.py" in said


def test_the_comparison_has_its_arm_with_the_baselines_parameters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("diffattn.lab.forecast.measure_speed", lambda run, threads: (1e9, "not measured"))
    assert main([*COMMANDS["compare"], "--dry-run"]) == 0
    printed = capsys.readouterr().out
    rows = re.findall(r"^  softcap .* ([+-][\d.]+) %", printed, flags=re.MULTILINE)
    assert len(rows) == 3 and all(abs(float(mismatch)) < 0.5 for mismatch in rows)


def test_it_reaches_the_processes_that_train(tmp_path: Path):
    load_plugin("my_attention.py")
    task = tiny_task(seeds=1, ruler=False, quarter=False)
    (run,) = (run for run in judged_runs(with_variants(tiny_plan(task), ["softcap"])) if run.arm == "softcap")
    pool = Pool(tmp_path, workers=1, threads=1)
    (answer,) = (answer for answer in pool.work([replace(run, maps=False)]) if answer)
    pool.close()
    assert (answer.status, answer.message) == ("finished", "")
    assert (tmp_path / run.folder / "evals" / "test.json").exists()
    command = json.loads((tmp_path / run.folder / "environment.json").read_text())["command"]
    assert command.endswith(f"--plugin {tmp_path / 'my_attention.py'}")


@pytest.mark.slow
def test_it_passes_the_contract_suite(plugin: Path):
    call = CONTRACT.replace("my_attention.py", str(plugin)).split()
    run = [sys.executable, "-m", "pytest", *call]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 20
