"""The kernels compile to machine code for GPUs that are not here, within the shared memory that these have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parents[2] / "support"
# Of `gpu_compiler.CASES`, the most different ones; they cannot be imported: it imports triton.
CASES = ["causal", "float32", "everything", "widest"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("capability", "name"), [*((90, name) for name in CASES), (80, "widest")])
def test_every_kernel_compiles(capability: int, name: str, tmp_path: Path) -> None:
    """Compute capability 9.0 is an H100 or H200, 8.0 an A100; 16-bit products are on their tensor cores."""
    surroundings = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(SUPPORT / "gpu_compiler.py"), str(capability), name]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    names = ["forward_kernel", "inner_kernel", "queries_kernel", "keys_kernel", "decode_kernel", "combine_kernel"]
    assert set(names) <= set(kernels)
    unit = "fma" if "float32" in name else "mma"
    for kernel in ("forward_kernel", "queries_kernel", "keys_kernel", "decode_kernel"):
        assert unit in kernels[kernel], kernels[kernel]
