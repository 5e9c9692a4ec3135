"""Peak memory of a call above its inputs. As `python -m diffattn.lab.bench.memory` it is the process that measures.

A CPU's memory is what the operating system gives a process, so the calls run in one of their own, whose allocator hands
back at once what is freed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from diffattn.lab.bench.contenders import Form, Inputs, Shape
from diffattn.lab.bench.ours import contenders


def peak_above_inputs(
    names: Iterable[str], shape: Shape, dtype: torch.dtype, device: torch.device, backward: bool
) -> tuple[dict[str, int], str | None]:
    """Bytes of results, gradients and everything between, by contender, and why there are none, where it failed."""
    # FlexAttention compiles for each shape on a CPU, which takes more memory than the call.
    names = [name for name in names if device.type == "cuda" or name != "flex"]
    if device.type == "cuda":
        x = Inputs(shape, dtype, device, grad=backward)
        return {name: _on_gpu(call_of(contenders()[name], x, backward), device) for name in names}, None
    job = {"names": names, "shape": asdict(shape), "dtype": str(dtype).removeprefix("torch."), "backward": backward}
    job["threads"] = torch.get_num_threads()
    # With a fixed threshold every large block is mapped by itself and unmapped when it is freed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-m", "diffattn.lab.bench.memory"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        return {}, (done.stderr.strip().splitlines() or ["the process that measures it was killed"])[-1]
    return json.loads(done.stdout), None


def call_of(form: Form, x: Inputs, backward: bool) -> Callable[[], None]:
    """What is measured: a forward pass without a graph, or forward and backward with fresh gradients."""

    def forward() -> None:
        with torch.no_grad():
            form.run(x)

    def both() -> None:
        for leaf in x.leaves:
            leaf.grad = None
        x.backward(form.run(x))

    return both if backward else forward


def _on_gpu(call: Callable[[], None], device: torch.device) -> int:
    call()
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before


def _measure(job: dict[str, Any]) -> dict[str, int]:
    torch.set_num_threads(job["threads"])
    shape, dtype, backward = Shape(**job["shape"]), getattr(torch, job["dtype"]), job["backward"]
    forms = contenders()
    short = replace(shape, queries=min(shape.queries, 64), keys=min(shape.keys, 64))
    small, x = (Inputs(some, dtype, grad=backward) for some in (short, shape))
    _ = x.mask, x.one_map()
    for name in job["names"]:
        call_of(forms[name], small, backward)()  # libraries allocate their own on the first calls
    found = {}
    for name in job["names"]:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        call_of(forms[name], x, backward)()
        found[name] = _status("VmHWM") - before
        for leaf in x.leaves:
            leaf.grad = None
    return found


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    print(json.dumps(_measure(json.load(sys.stdin))))
