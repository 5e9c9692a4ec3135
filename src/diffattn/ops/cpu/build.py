"""Compiles the kernel beside this file, once for each instruction set.

`python -m diffattn.ops.cpu` does it in place.
setup.py loads this file by its path, where there is no torch: nothing of ours is imported here.
"""

import argparse
import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
_AVX512 = ("-march=x86-64-v3", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd")
INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {
    "avx2": ("-march=x86-64-v3",),
    "avx512": _AVX512,
    "avx512_bf16": (*_AVX512, "-mavx512bf16"),
}
# Not -ffast-math: NaN and infinity have a meaning here.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")
SANITIZE = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def unsupported() -> str | None:
    """Why nothing can be built for this machine, whatever is installed on it."""
    system, machine = platform.system(), platform.machine()
    if system == "Linux" and machine in ("x86_64", "AMD64"):
        return None
    return f"the kernel is written for Linux on x86-64, and this is {system} on {machine}"


def library_path(isa: str, folder: Path = SOURCES) -> Path:
    """Where the library for an instruction set lies."""
    return folder / f"libdiffattn_{isa}.so"


def source_hash() -> str:
    """Of everything that a library is made from; each library carries the one that it was built with."""
    found = hashlib.sha256(repr((FLAGS, INSTRUCTION_SETS)).encode())
    for path in sorted((*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h"))):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:32]


def build(folder: Path, names: Sequence[str] = tuple(INSTRUCTION_SETS), sanitize: bool = False) -> list[str]:
    """Builds the named libraries into `folder`, those that are up to date excepted; returns what went wrong."""
    digest = source_hash()
    wanted = [name for name in names if not _is_up_to_date(library_path(name, folder), digest)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in wanted:
            # What an earlier build left must not stand in for what cannot be built now.
            library_path(name, folder).unlink(missing_ok=True)
    except OSError as error:
        return [f"{folder} cannot be written: {error.strerror}"]
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    reason = (unsupported() or _unusable(compiler)) if wanted else None
    if reason is not None:
        return [reason]
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        compiling = {
            name: [
                workers.submit(_compile, compiler, name, digest, sanitize, source, Path(work))
                for source in sorted(SOURCES.glob("*.cpp"))
            ]
            for name in wanted
        }
        problems: list[str] = []
        for name, jobs in compiling.items():
            try:
                objects = [job.result() for job in jobs]
                _link(compiler, objects, sanitize, library_path(name, folder))
            except subprocess.CalledProcessError as error:
                problems.append(f"{name}: {shlex.join(error.cmd)} failed:\n{error.stderr.strip()}")
    return problems


def _unusable(compiler: list[str]) -> str | None:
    try:
        macros = _run([*compiler, "-dM", "-E", "-x", "c++", os.devnull])
    except (OSError, subprocess.CalledProcessError):
        return f"there is no working C++ compiler {shlex.join(compiler)!r}; install g++, or name another in CXX"
    if "__clang__" in macros:
        # It calls another OpenMP runtime than the one that torch has in the process.
        return f"{shlex.join(compiler)!r} is clang, and the kernel needs g++"
    return None


def _is_up_to_date(library: Path, digest: str) -> bool:
    return library.exists() and digest.encode() in library.read_bytes()


def _compile(compiler: list[str], name: str, digest: str, sanitize: bool, source: Path, folder: Path) -> Path:
    target = folder / f"{source.stem}.{name}.o"
    known = (f'-DDIFFATTN_ISA="{name}"', f'-DDIFFATTN_SOURCE_HASH="{digest}"')
    flags = (*FLAGS, *INSTRUCTION_SETS[name], *(SANITIZE if sanitize else ()), *known)
    _run([*compiler, *flags, "-c", str(source), "-o", str(target)])
    return target


def _link(compiler: list[str], objects: list[Path], sanitize: bool, target: Path) -> None:
    # Without -fopenmp: OpenMP's functions are found at load in the runtime that torch brought, so that there is one.
    linked = target.with_suffix(f".{os.getpid()}.so")
    _run([*compiler, "-shared", *(SANITIZE if sanitize else ()), *map(str, objects), "-o", str(linked)])
    # A process that holds the old library keeps it.
    linked.replace(target)


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Builds in place, or where `--into` says."""
    parser = argparse.ArgumentParser(
        "python -m diffattn.ops.cpu", description="Compiles the fused CPU kernel. CXX names the compiler (g++)."
    )
    parser.add_argument("names", nargs="*", metavar="ISA", help=f"of {', '.join(INSTRUCTION_SETS)}; all by default")
    parser.add_argument("--into", type=Path, default=SOURCES, help="the folder for the libraries; beside the sources")
    parser.add_argument("--sanitize", action="store_true", help="with the address and undefined-behaviour sanitizers")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(INSTRUCTION_SETS)
    if unknown:
        parser.error(f"unknown instruction set {', '.join(sorted(unknown))}; there are {', '.join(INSTRUCTION_SETS)}")
    problems = build(asked.into, asked.names or tuple(INSTRUCTION_SETS), asked.sanitize)
    for problem in problems:
        print(f"diffattn: the CPU kernel was not built: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
