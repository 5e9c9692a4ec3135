"""Which compiled kernel is used, what is said where there is none, and what an installation brings."""

import ctypes
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from diffattn.ops.cpu import build, library

ROOT = Path(__file__).resolve().parents[3]
INSTALLED = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
pytestmark = pytest.mark.skipif(build.unsupported() is not None, reason=str(build.unsupported()))


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """A folder with a copy of the avx2 library."""
    if not build.library_path("avx2").exists():
        pytest.skip(f"the kernel is not compiled: {library.UNAVAILABLE}")
    shutil.copy(build.library_path("avx2"), tmp_path)
    return tmp_path


@pytest.fixture
def wide_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every instruction set passes for one that this processor has."""
    monkeypatch.setattr(library, "NEEDED_FLAGS", dict.fromkeys(build.INSTRUCTION_SETS, frozenset({"avx2"})))


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_copied_library_is_found_and_names_its_instruction_set(compiled: Path) -> None:
    kernel, reason = library.find(compiled, None)
    assert reason is None and kernel is not None
    assert kernel.diffattn_isa() == b"avx2"
    assert 0.2e9 < kernel.diffattn_clock() < 10e9


def test_a_library_that_was_compiled_from_other_sources_is_named_and_not_used(compiled: Path) -> None:
    path = build.library_path("avx2", compiled)
    path.write_bytes(path.read_bytes().replace(build.source_hash().encode(), b"0" * 32))
    with pytest.warns(RuntimeWarning, match="other sources"):
        kernel, reason = library.find(compiled, None)
    assert kernel is None
    assert reason is not None and "libdiffattn_avx2.so" in reason and "python -m diffattn.ops.cpu" in reason


def test_a_file_that_is_no_library_is_named_and_not_used(tmp_path: Path) -> None:
    build.library_path("avx2", tmp_path).write_text("not a library")
    with pytest.warns(RuntimeWarning, match="cannot be loaded"):
        kernel, reason = library.find(tmp_path, None)
    assert kernel is None and reason is not None and "cannot be loaded" in reason


@pytest.mark.usefixtures("wide_processor")
def test_where_the_best_library_is_broken_the_next_one_serves_with_a_warning(compiled: Path) -> None:
    build.library_path("avx512", compiled).write_text("not a library")
    with pytest.warns(RuntimeWarning, match="avx512 is not used"):
        kernel, reason = library.find(compiled, None)
    assert reason is None and kernel is not None and kernel.diffattn_isa() == b"avx2"


@pytest.mark.usefixtures("wide_processor")
def test_a_forced_instruction_set_is_taken_or_nothing(compiled: Path) -> None:
    kernel, _ = library.find(compiled, "avx2")
    assert kernel is not None and kernel.diffattn_isa() == b"avx2"
    kernel, reason = library.find(compiled, "avx512")
    assert kernel is None and reason is not None and "not compiled for avx512" in reason


def test_forcing_an_unknown_instruction_set_says_which_there_are(tmp_path: Path) -> None:
    _, reason = library.find(tmp_path, "sse2")
    assert reason == "DIFFATTN_CPU_ISA: got 'sse2', needs one of avx2, avx512, avx512_bf16"


def test_forcing_what_the_processor_cannot_run_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(library.NEEDED_FLAGS, "avx512", frozenset({"avx1024", "avx2"}))
    _, reason = library.find(tmp_path, "avx512")
    assert reason == "DIFFATTN_CPU_ISA: got 'avx512', and the processor lacks avx1024"


def test_without_a_library_the_reason_says_how_to_get_one(tmp_path: Path) -> None:
    _, reason = library.find(tmp_path, None)
    assert reason is not None and "not compiled" in reason and "g++" in reason


def test_on_other_machines_the_reason_names_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    kernel, reason = library.find(tmp_path, None)
    assert kernel is None and reason == "the kernel is written for Linux on x86-64, and this is Linux on aarch64"
    assert build.build(tmp_path) == [reason]


def test_the_environment_forces_an_instruction_set_and_info_shows_the_reason() -> None:
    code = "from diffattn.cli import main; main(['info', 'implementations'])"
    assert "DIFFATTN_CPU_ISA: got 'sse2'" in python(code, DIFFATTN_CPU_ISA="sse2")


def test_there_is_one_openmp_runtime_after_a_call() -> None:
    if library.KERNEL is None:
        pytest.skip(f"the kernel does not run here: {library.UNAVAILABLE}")
    code = """
import torch, diffattn
torch.set_num_threads(2)
q = torch.randn(1, 4, 300, 32, requires_grad=True)
diffattn.diff_attention(q, q, q, q, q, 0.5, impl="cpu").sum().backward()
lines = open("/proc/self/maps").read().splitlines()
print(*{line.split()[-1] for line in lines if any(name in line for name in ("libgomp", "libomp", "libiomp"))})
"""
    assert len(python(code).split()) == 1


def test_the_structs_have_the_layout_of_the_header(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to read kernel.h with")
    lines = ['#include "kernel.h"', "#include <cstddef>"]
    for struct in (library.Operand, library.Call, library.Saved, library.Gradients):
        name = struct.__name__
        lines.append(f"static_assert(sizeof({name}) == {ctypes.sizeof(struct)});")
        for field in struct._fields_:
            offset = getattr(struct, field[0]).offset
            lines.append(f"static_assert(offsetof({name}, {field[0]}) == {offset});")
    source = tmp_path / "layout.cpp"
    source.write_text("\n".join(lines))
    command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{build.SOURCES}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_what_the_compiler_cannot_do_is_said_and_nothing_stale_stays(
    compiled: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.library_path("avx2", compiled)
    path.write_bytes(path.read_bytes().replace(build.source_hash().encode(), b"0" * 32))
    monkeypatch.setenv("CXX", compiler)
    problems = build.build(compiled, ["avx2"])
    assert len(problems) == 1 and compiler in problems[0] and "install g++" in problems[0]
    assert not path.exists()


def test_a_compiler_that_fails_halfway_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "c++"
    broken.write_text('#!/bin/sh\ncase "$*" in *-dM*) exit 0;; esac\necho "unknown option" >&2\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    problems = build.build(tmp_path / "libraries", ["avx2", "avx512"])
    assert [problem.split(":")[0] for problem in problems] == ["avx2", "avx512"]
    assert all("unknown option" in problem for problem in problems)


def test_what_is_up_to_date_is_not_compiled_again(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if library.KERNEL is None:
        pytest.skip(f"the kernel does not run here: {library.UNAVAILABLE}")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build.build(compiled, ["avx2"]) == []


def test_without_a_compiler_the_installation_succeeds_and_the_reason_shows(tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run(
        [*pip, str(site), str(_checkout(tmp_path))],
        env={**os.environ, "CXX": "no-such-compiler"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    code = "import diffattn; print(diffattn.__file__); print(diffattn.implementations()['cpu'])"
    where, reason = python(code, PYTHONPATH=str(site)).splitlines()
    assert Path(where).is_relative_to(site)
    assert "not compiled" in reason and "python -m diffattn.ops.cpu" in reason


def test_without_a_compiler_an_editable_installation_succeeds(tmp_path: Path) -> None:
    code = "import setuptools.build_meta as backend; backend.build_editable('.')"
    done = _backend(code, _checkout(tmp_path), CXX="no-such-compiler")
    assert "the fused CPU kernel was not built" in done.stderr and "no-such-compiler" in done.stderr


@pytest.mark.slow
def test_a_wheel_serves_every_python_of_the_platform_and_brings_its_sources(tmp_path: Path) -> None:
    checkout = _checkout(tmp_path)
    _backend("import setuptools.build_meta as backend; backend.build_wheel('.')", checkout)
    (wheel,) = checkout.glob("*.whl")
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "wheel")
    home = tmp_path / "wheel" / build.SOURCES.relative_to(ROOT / "src")
    for name in build.INSTRUCTION_SETS:
        assert build.source_hash().encode() in build.library_path(name, home).read_bytes()
    sources = {path.name for path in build.SOURCES.iterdir() if path.suffix in (".cpp", ".h")}
    assert sources <= {path.name for path in home.iterdir()}


def _backend(code: str, checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command, variables = [sys.executable, "-c", code], {**os.environ, **environment}
    done = subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def _checkout(folder: Path) -> Path:
    """What a stranger clones, as far as an installation reads it."""
    target = folder / "checkout"
    target.mkdir()
    for name in INSTALLED:
        shutil.copy(ROOT / name, target)
    shutil.copytree(ROOT / "src", target / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    return target
