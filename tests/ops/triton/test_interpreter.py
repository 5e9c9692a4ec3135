"""The kernels' tests, run by Triton's interpreter in a process of their own (see conftest.py); and what needs none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diffattn.ops import diff_attention, implementations

ROOT = Path(__file__).resolve().parents[3]


def interpreted(*arguments: str) -> None:
    """Runs pytest with these arguments under the interpreter; its last lines are the message if it fails."""
    surroundings = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout, done.stdout


def test_kernels() -> None:
    interpreted("-m", "not slow", "tests/ops/triton")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_kernels_over_a_sweep_of_calls() -> None:
    interpreted("-m", "slow", "tests/ops/triton", "--timeout", "2800")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_check_for_a_gpu_passes_in_small() -> None:
    surroundings = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": "src:tests"}
    command = [sys.executable, "tests/gpu/correctness.py", "--device", "cpu", "--tokens", "40"]
    done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "every restriction: as the reference" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("subject", ["empty_rows", "nonfinite", "normed", "precision", "compile"])
def test_what_every_implementation_must_do(subject: str) -> None:
    interpreted("-k", "triton", f"tests/ops/test_{subject}.py", "--timeout", "2800")


def test_without_a_gpu_it_says_what_is_missing() -> None:
    """Importing the operators, and asking, loads no kernel and nothing that imports triton."""
    code = """
import sys
from diffattn.ops import implementations
print(implementations()["triton"])
print([name for name in sys.modules if name.startswith("diffattn.ops.triton")])
"""
    surroundings = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=surroundings, capture_output=True, text=True, check=True)
    assert done.stdout == "no CUDA device\n['diffattn.ops.triton']\n"


def test_triton_is_imported_in_one_file() -> None:
    sources = (ROOT / "src" / "diffattn").rglob("*.py")
    importing = re.compile(r"^\s*(import triton|from triton)\b", re.MULTILINE)
    assert [x.name for x in sources if importing.search(x.read_text(encoding="utf-8"))] == ["language.py"]


def test_an_explicit_call_is_refused_with_the_reason() -> None:
    reason = implementations()["triton"]
    if reason is None:
        reason = "the tensors are on cpu"
    x = torch.zeros(1, 1, 2, 16)
    with pytest.raises(ValueError, match=f"'triton' cannot serve this call: {reason}"):
        diff_attention(x, x, x, x, x, 0.5, impl="triton")
