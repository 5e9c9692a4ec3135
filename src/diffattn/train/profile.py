"""What this machine can do, and what a run used of it."""

import ctypes
import functools
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch


def choose_device() -> torch.device:
    """The GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_precision(wanted: str, device: torch.device) -> torch.dtype:
    """The dtype of matrix products: bfloat16 only where the machine has instructions for it.

    `wanted` is auto, float32 or bfloat16; ValueError where bfloat16 is demanded and would be emulated.
    """
    if wanted == "float32":
        return torch.float32
    if has_bfloat16(device):
        return torch.bfloat16
    if wanted == "bfloat16":
        raise ValueError(
            f"train.precision is bfloat16, but this {device.type} has no bfloat16 instructions: it would be emulated, "
            "slower than float32. Use auto or float32"
        )
    return torch.float32


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices itself (CUDA since Ampere; AVX512-BF16 or AMX on x86)."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@functools.cache
def peak_flops(device: torch.device, dtype: torch.dtype, threads: int, seconds: float = 0.2) -> float:
    """Fastest rate of a large matrix product, FLOP/s, measured for about `seconds`; once per process and setting.

    On a CPU the clock is that of the calling thread, which stands still while another program has its core.
    """
    clock = time.perf_counter if device.type == "cuda" else time.thread_time
    # Long enough to reach full speed, short enough that some repetition is not interrupted by other work.
    size = 8192 if device.type == "cuda" else 512 if threads <= 4 else 2048
    left = torch.ones(size, size, device=device, dtype=dtype)
    out = torch.empty_like(left)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        start = clock()
        torch.mm(left, left, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, clock() - start)
    return 2 * size**3 / best


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[int]:
    """Compute with this many CPU threads (None: torch's choice) until the block ends; gives the number in use."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Have this process keep the memory that it frees, for good, so that each step finds that of the one before.

    glibc gives larger blocks back to the system at once, and the next step pays for every page of them anew: a step of
    `recall` had 2,000 to 4,000 page faults, 10 to 20 % of its time, one of `ab_124m` 45,000, 8 % (Zen 3, one thread).
    Elsewhere than on glibc nothing happens.
    """
    trim_threshold, mmap_threshold = -1, -3  # names of malloc.h
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, 2**31 - 1)
        # Larger blocks than 256 MiB would leave larger holes than they save time. Old versions refuse more than 32 MiB.
        _ = mallopt(mmap_threshold, 2**28) or mallopt(mmap_threshold, 2**25)


def reset_peak_memory(device: torch.device) -> None:
    """Forget the largest use so far, so that several runs of one process do not inherit each other's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError, AttributeError, TypeError):  # glibc only: what an earlier run left, see `keep_freed_memory`
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
    with suppress(OSError):  # Linux only; elsewhere the process's peak is what can be had
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int | None:
    """Most memory in use since `reset_peak_memory`, bytes: the GPU's, or this process's where there is none."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Not getrusage where this is to be had: its maximum is inherited from the process that started this one.
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def processor(device: torch.device) -> str:
    """The name of the chip that computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = torch.cpu.get_capabilities().get("cpu_name")
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return str(name or platform.processor() or platform.machine())
