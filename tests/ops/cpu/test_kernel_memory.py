"""What memory the fused CPU kernel takes above its inputs, forward and backward: in processes of their own."""

import os
import subprocess
import sys

import pytest

from support.cpu_kernel import needs_kernel

sanitized = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer's own memory counts too"
)
pytestmark = [needs_kernel, sanitized]

MEMORY = """
import sys, torch
from pathlib import Path
from diffattn.ops import diff_attention
tokens, dtype = int(sys.argv[1]), getattr(torch, sys.argv[2])
torch.set_num_threads(2)
def run(tokens):
    q, k, v = (torch.randn(1, tokens, n, 64).to(dtype).transpose(1, 2).requires_grad_() for n in (8, 8, 8))
    v = v.transpose(1, 2).reshape(1, tokens, 4, 128).transpose(1, 2)
    def peak():
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = peak()
    out = diff_attention(q[:, 0::2], k[:, 0::2], q[:, 1::2], k[:, 1::2], v, 0.5, is_causal=True, impl="cpu")
    out.backward(torch.ones_like(out))
    return peak() - before
run(64)
print(run(tokens))
"""


def peak_above_inputs(tokens: int, dtype: str) -> float:
    """In megabytes, forward and backward, four heads of 64."""
    command = [sys.executable, "-c", MEMORY, str(tokens), dtype]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_memory_is_below_that_of_one_map() -> None:
    """Maps of 4096 x 4096 for four heads would take 256 MB; queries, results and gradients alone are 40."""
    assert peak_above_inputs(4096, "float32") <= 90


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_grows_with_the_length_and_not_with_its_square(dtype: str) -> None:
    # A thread that gets no task of a kind never touches its scratch memory for it: the most of several runs counts.
    short, long = max(peak_above_inputs(4096, dtype) for _ in range(4)), peak_above_inputs(8192, dtype)
    assert long <= 160 and long <= 2.2 * short
