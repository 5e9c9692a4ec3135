"""What only AVX512 and its bfloat16 instructions run, spelled out for any processor: 16 lanes, products of pairs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diffattn.ops.cpu import build

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(build.unsupported() is not None, reason="there is no kernel for this machine")
def test_wide_registers_and_pairs_of_bfloat16_pass_the_kernels_tests(tmp_path: Path) -> None:
    compiler = f"{os.environ.get('CXX') or 'g++'} -DDIFFATTN_WIDE -DDIFFATTN_PAIRS -Wno-psabi"
    builder = [sys.executable, build.__file__, "--into", str(tmp_path), "avx2"]
    subprocess.run(builder, check=True, env={**os.environ, "CXX": compiler})
    chosen = {"DIFFATTN_CPU_FOLDER": str(tmp_path), "DIFFATTN_CPU_ISA": "avx2"}
    tests = [str(path) for path in sorted(HERE.glob("test_kernel_*.py"))]
    options = ("-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not slow", "-k", "not memory")
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, env={**os.environ, **chosen}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
