"""The compiled kernel: the best library that the processor can run, found and checked once, at import.

DIFFATTN_CPU_ISA (avx2, avx512 or avx512_bf16) forces one; DIFFATTN_CPU_FOLDER names another folder of libraries.
The structs are those of kernel.h.
"""

import ctypes
import os
import warnings
from ctypes import c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

import torch  # noqa: F401 (brings the OpenMP runtime that the kernel shares)

from diffattn.ops.cpu.build import INSTRUCTION_SETS, SOURCES, library_path, source_hash, unsupported

_AVX2 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
# As /proc/cpuinfo calls them.
NEEDED_FLAGS = {"avx2": _AVX2, "avx512": _AVX512, "avx512_bf16": _AVX512 | {"avx512_bf16"}}
FLOAT32, BFLOAT16 = 0, 1
NO_MASK, BOOL_MASK, FLOAT_MASK = 0, 1, 2


class Operand(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("batch", c_int64), ("head", c_int64), ("position", c_int64))


class Call(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("dtype", "maps")),
        *((name, c_int64) for name in ("batch", "heads", "groups", "queries", "keys", "width", "value_width")),
        ("q", Operand * 2),
        ("k", Operand * 2),
        ("v", Operand),
        ("scale", c_float),
        ("lam", c_void_p),
        ("lam_strides", c_int64 * 3),
        ("sink", c_void_p),
        ("is_causal", c_int32),
        ("mask_kind", c_int32),
        ("window", c_int64),
        ("documents", c_void_p),
        ("lengths", c_void_p),
        ("alibi", c_void_p),
        ("mask", c_void_p),
        ("mask_strides", c_int64 * 4),
        ("norm", c_int32),
        ("weight", c_void_p),
        ("eps", c_float),
        ("gain", c_float),
        ("threads", c_int32),
    )


class Saved(ctypes.Structure):
    _fields_ = (
        ("maximum", c_void_p),
        ("inverse_sum", c_void_p),
        ("before_norm", ctypes.c_void_p),
        ("inverse_root", c_void_p),
    )


class Gradients(ctypes.Structure):
    _fields_ = (
        ("out", Operand),
        ("q", Operand * 2),
        ("k", Operand * 2),
        ("v", Operand),
        ("row_sums", c_void_p),
        ("weight", c_void_p),
    )


def find(folder: Path, forced: str | None) -> tuple[ctypes.CDLL | None, str | None]:
    """The kernel for this processor, or why there is none; warns where a library that should work does not."""
    reason = unsupported() or _cannot_force(forced)
    if reason is not None:
        return None, reason
    runnable = [name for name in reversed(INSTRUCTION_SETS) if not _missing_flags(name)]
    if not runnable:
        return None, f"the processor lacks {', '.join(_missing_flags('avx2'))}"
    built = [name for name in ([forced] if forced else runnable) if library_path(name, folder).exists()]
    if not built:
        return None, f"it is not compiled for {forced or runnable[0]}; {_HOW_TO_BUILD}"
    reason = None
    for name in built:
        kernel, problem = _open(library_path(name, folder))
        if problem is None:
            return kernel, None
        warnings.warn(f"diffattn: the CPU kernel for {name} is not used: {problem}", RuntimeWarning, stacklevel=2)
        reason = reason or problem
    return None, reason


_HOW_TO_BUILD = "with g++ installed, `python -m diffattn.ops.cpu` compiles it"


def _cannot_force(forced: str | None) -> str | None:
    if not forced:
        return None
    if forced not in INSTRUCTION_SETS:
        return f"DIFFATTN_CPU_ISA: got {forced!r}, needs one of {', '.join(INSTRUCTION_SETS)}"
    missing = _missing_flags(forced)
    return f"DIFFATTN_CPU_ISA: got {forced!r}, and the processor lacks {', '.join(missing)}" if missing else None


def _missing_flags(name: str) -> list[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return sorted(NEEDED_FLAGS[name] - set(flags))


def _open(path: Path) -> tuple[ctypes.CDLL | None, str | None]:
    try:
        _share_openmp()
        kernel = ctypes.CDLL(str(path))
        kernel.diffattn_source_hash.restype = kernel.diffattn_isa.restype = ctypes.c_char_p
        if kernel.diffattn_source_hash().decode() != source_hash():
            return None, f"{path.name} was compiled from other sources than those beside it; {_HOW_TO_BUILD} anew"
        for name in ("diffattn_forward", "diffattn_backward", "diffattn_decode"):
            getattr(kernel, name).restype = None
        kernel.diffattn_parts.restype = c_int64
        kernel.diffattn_clock.restype = c_double
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be loaded: {error}"
    return kernel, None


def _share_openmp() -> None:
    """Makes torch's OpenMP runtime visible to the kernel, which is linked with none: two would be two thread pools."""
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "omp" in line]
    # Intel's and LLVM's runtimes, which some builds of torch bring, answer to GNU's names too.
    names = ("libgomp", "libiomp5", "libomp")
    found = [path for start in names for path in mapped if Path(path).name.startswith(start)]
    ctypes.CDLL(found[0] if found else "libgomp.so.1", mode=ctypes.RTLD_GLOBAL)


KERNEL, UNAVAILABLE = find(Path(os.environ.get("DIFFATTN_CPU_FOLDER") or SOURCES), os.environ.get("DIFFATTN_CPU_ISA"))


def instruction_set() -> str | None:
    """What the kernel in use was compiled for; None where there is none."""
    return None if KERNEL is None else KERNEL.diffattn_isa().decode()


def clock() -> float | None:
    """Cycles a second of this core, measured in a few milliseconds; None where there is no kernel."""
    return None if KERNEL is None else KERNEL.diffattn_clock()
