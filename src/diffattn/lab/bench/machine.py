"""What is measured on: the machine, its fastest matrix product, and what its arithmetic units could do."""

import datetime
import os
import platform
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import diffattn
from diffattn.lab.bench.timing import clock, wait
from diffattn.ops.cpu import library
from diffattn.train import profile

SIZES_CPU, SIZES_GPU = (512, 1024), (4096, 8192)
"""Of the square products that are tried."""


@dataclass(frozen=True)
class Peak:
    """FLOP/s that bound a measurement."""

    matmul: float
    """The fastest torch.mm in this dtype on these threads, measured."""
    hardware: float | None
    """Threads x clock x FLOPs per cycle; None where that is not known."""
    derivation: str
    """How `hardware` was worked out, or why it is unknown."""

    def shares(self, flops_per_second: float) -> dict[str, float | None]:
        """What a speed is of both, for JSON."""
        hardware = None if self.hardware is None else flops_per_second / self.hardware
        return {"share_of_matmul_peak": flops_per_second / self.matmul, "share_of_hardware_peak": hardware}


def describe(device: torch.device, dtype: torch.dtype, peak: Peak) -> dict[str, Any]:
    """Machine, date, versions and threads, for JSON."""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": profile.processor(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "diffattn": diffattn.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "implementations": diffattn.implementations(),
        "matmul_peak_gflops": peak.matmul / 1e9,
        "hardware_peak_gflops": None if peak.hardware is None else peak.hardware / 1e9,
        "hardware_peak_derivation": peak.derivation,
    }


def measure_peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """Measure the fastest matrix product and work out the hardware's limit."""
    threads = torch.get_num_threads()
    matmul = max(_matmul(device, dtype, size) for size in (SIZES_GPU if device.type == "cuda" else SIZES_CPU))
    hardware, derivation = None, "unknown: only worked out for x86 processors"
    if device.type == "cpu" and platform.machine() in ("x86_64", "AMD64"):
        # Behind the products: a clock rises with the load.
        measured = library.clock() or 0.0
        hardware, derivation = hardware_peak(_cpuinfo(), dtype, min(threads, os.cpu_count() or threads), measured)
    if hardware is not None and matmul > hardware:
        reached = f"torch.mm reaches {matmul / 1e9:.0f} GFLOP/s"
        hardware, derivation = None, f"unknown: {reached}, more than {derivation}: the clock is above the reported one"
    return Peak(matmul, hardware, derivation)


def _matmul(device: torch.device, dtype: torch.dtype, size: int, seconds: float = 0.3) -> float:
    """FLOP/s of the fastest of the square products that `seconds` hold."""
    left = torch.ones(size, size, device=device, dtype=dtype)
    out, now = torch.empty_like(left), clock(device)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        start = now()
        torch.mm(left, left, out=out)
        wait(device)
        best = min(best, max(now() - start, 1e-9))
    return 2 * size**3 / best


def hardware_peak(
    cpuinfo: dict[str, str], dtype: torch.dtype, threads: int, measured: float = 0.0
) -> tuple[float | None, str]:
    """FLOP/s of `threads` cores by clock and width of fused multiply-add, and how that comes about.

    cpuinfo: the fields of one processor of /proc/cpuinfo; measured: its clock in Hz as it was found, since a virtual
    machine often tells the lowest. Two units per core are assumed, as all x86 server and desktop cores of this
    century's twenties have; Zen 4 joins its two for one AVX-512 instruction.
    """
    flags = cpuinfo.get("flags", "").split()
    if "fma" not in flags or not re.fullmatch(r"[\d.]+", cpuinfo.get("cpu MHz", "")):
        return None, "unknown: /proc/cpuinfo tells no clock or no fused multiply-add"
    megahertz = max(float(cpuinfo["cpu MHz"]), _highest_megahertz(), measured / 1e6)
    halved = cpuinfo.get("vendor_id") == "AuthenticAMD" and cpuinfo.get("cpu family") == "25"
    bits, units = (512, 1 if halved else 2) if "avx512f" in flags else (256, 2)
    name = "AVX-512" if bits == 512 else "AVX2"
    per_cycle = 2 * units * bits // 32
    if dtype == torch.float64:
        per_cycle //= 2
    elif dtype == torch.bfloat16:
        if "amx_bf16" in flags or "avx512_bf16" not in flags:
            why = "AMX is not worked out" if "amx_bf16" in flags else "no bfloat16 instructions, products are emulated"
            return None, f"unknown: {why}"
        name, per_cycle = "AVX512-BF16", 2 * per_cycle
    elif dtype != torch.float32:
        return None, f"unknown: not worked out for {str(dtype).removeprefix('torch.')}"
    peak = threads * megahertz * 1e6 * per_cycle
    clock = f"{megahertz / 1e3:.2f} GHz"
    return (
        peak,
        f"{threads} core(s) x {clock} x {per_cycle} FLOPs a cycle ({units} x {name}) = {peak / 1e9:.0f} GFLOP/s",
    )


def _cpuinfo() -> dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _highest_megahertz() -> float:
    try:
        return int(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").read_text()) / 1e3
    except (OSError, ValueError):
        return 0.0
