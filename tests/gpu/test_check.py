"""The command for a GPU machine can start there: it needs torch, triton and numpy, and nothing else."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
THERE = {"torch", "triton", "numpy", "pytest"}


def absent() -> set[str]:
    """Top-level modules of everything else that the project asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.match(r"[A-Za-z0-9_-]+", line)[0].replace("-", "_") for line in wanted}
    return (names | {"transformers", "yaml", "xdist"}) - THERE - {"diffattn"}


@pytest.mark.parametrize("script", ["correctness.py", "timings.py"])
def test_the_scripts_import_nothing_else(script: str) -> None:
    code = f"""
import runpy, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent()!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocker())
runpy.run_path("tests/gpu/{script}", run_name="imported")
import diffattn.ops.triton.operators
"""
    surroundings = {**os.environ, "PYTHONPATH": "src:tests"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", PATHS + code],
        cwd=ROOT,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# Without `site` an editable installation of the project is not seen: the sources are found by PYTHONPATH alone.
PATHS = f"import sys; sys.path += {[p for p in sys.path if 'site-packages' in p]!r}\n"


def test_the_command_is_a_script_that_bash_accepts() -> None:
    script = ROOT / "tests" / "gpu" / "check.sh"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
