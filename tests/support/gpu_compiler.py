"""Compiles the kernels for a GPU that is not there: `python gpu_compiler.py 90 causal` prints a line for each kernel.

Everything on the way to a launch happens as on the GPU (arguments, specialisation, block sizes, machine code by the
assembler that Triton brings), except the launch. It stops at the first kernel that does not compile, or that needs more
shared memory than a program may have. It must have a process of its own: it replaces Triton's driver.
"""

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from diffattn.ops.triton import blocks, launch
from diffattn.ops.triton.visible import restrictions

SHARED_MEMORY = {80: 166_912, 90: 232_448}
"""Bytes that a program may have, by compute capability: A100, H100 and H200."""
TOKENS = 256
CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "float16": {"dtype": torch.float16, "shared_keys": True},
    "float32": {"dtype": torch.float32},
    "everything": {
        "window": 64,
        "documents": torch.zeros(1, TOKENS, dtype=torch.int64),
        "lengths": torch.zeros(1, dtype=torch.int64),
        "alibi": torch.zeros(2),
        "mask": torch.zeros(1, 1, 1, 1).expand(1, 2, TOKENS, TOKENS),
    },
    "one map": {"maps": 1, "sink": torch.zeros(2), "mask": torch.ones(1, 2, TOKENS, TOKENS, dtype=torch.bool)},
    "wide": {"width": 128, "value_width": 256},
    "widest": {"width": 256, "value_width": 512},
    "widest float32": {"width": 256, "value_width": 512, "dtype": torch.float32},
    "window": {"window": 64, "width": 32, "value_width": 32},
}


class AbsentGpu:
    """What Triton asks of a driver before a launch."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_benchmarker(self) -> Any:
        """Where several block sizes are compiled, the first is as good as any."""

        def call_once(call: Any, quantiles: tuple[float, ...]) -> list[float]:
            call()
            return [1.0 for _ in quantiles]

        return call_once


def problem(
    width: int = 64,
    value_width: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    maps: int = 2,
    shared_keys: bool = False,
    sink: torch.Tensor | None = None,
    queries: int = TOKENS,
    **given: Any,
) -> launch.Problem:
    """A call of two heads on one group, causal."""
    named = {name: given.get(name) for name in ("mask", "window", "documents", "lengths", "alibi")}
    if named["mask"] is not None:
        named["mask"] = named["mask"][:, :, :queries]
    q1, q2 = (torch.zeros(1, queries, 2, width, dtype=dtype).transpose(1, 2) for _ in range(2))
    k1, k2 = (torch.zeros(1, TOKENS, 1, width, dtype=dtype).transpose(1, 2) for _ in range(2))
    v = torch.zeros(1, TOKENS, 1, value_width, dtype=dtype).transpose(1, 2)
    lam = torch.zeros(()).expand(1, 2, queries, 1) if maps == 2 else None
    second = (q2 if maps == 2 else None, None if shared_keys or maps == 1 else k2)
    return launch.Problem(q1, k1, *second, v, lam, sink, restrictions(**named), True, 0.125)


def main(capability: int, name: str) -> None:
    """All kernels of one case, each with the first block sizes of its list."""
    limit = SHARED_MEMORY[capability]
    driver.set_active(AbsentGpu(capability))
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        compiled = run(self, *arguments, grid=grid, warmup=True, **named)
        compiled = compiled.result() if hasattr(compiled, "result") else compiled
        assert compiled.metadata.shared <= limit, (self.fn.__name__, compiled.metadata.shared)
        products = [word for word in ("wgmma", "mma.sync", "fma.rn") if word in compiled.asm["ptx"]]
        print(self.fn.__name__, len(compiled.asm["cubin"]), compiled.metadata.shared, *products, flush=True)
        return compiled

    JITFunction.run = compile_only
    launch._shared_memory = lambda device: limit
    blocks.MEASURED = 1
    call = problem(**CASES[name])
    out, first, second, maximum, log_sum = launch.forward(call, save=True)
    launch.backward(call, torch.zeros_like(out), out if call.maps == 1 else first, second, maximum, log_sum)
    launch.forward(call, save=False)
    launch.decode(problem(**CASES[name], queries=1))


if __name__ == "__main__":
    print(triton.__version__)
    main(int(sys.argv[1]), sys.argv[2])
