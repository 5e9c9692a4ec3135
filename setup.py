"""The fused CPU kernel, compiled at installation; everything else about the package is in pyproject.toml.

The libraries are plain C behind ctypes: one wheel serves every Python and every torch of its platform. Where nothing
can be compiled the installation goes on without them, and `diffattn info` says why.
"""

import importlib.util
from pathlib import Path
from typing import Any

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

HOME = Path("diffattn", "ops", "cpu")
SOURCES = Path("src") / HOME


def _builder() -> Any:
    spec = importlib.util.spec_from_file_location("builder", Path(__file__).parent / SOURCES / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildKernel(Command):
    """Into the wheel, or beside the sources for an editable installation."""

    user_options = ()

    def initialize_options(self) -> None:
        self.editable_mode = False
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        folder = Path(__file__).parent / SOURCES if self.editable_mode else Path(str(self.build_lib)) / HOME
        for problem in _builder().build(folder):
            self.warn(f"the fused CPU kernel was not built, other implementations serve in its place: {problem}")

    def get_source_files(self) -> list[str]:
        return [str(path) for kind in ("*.cpp", "*.h", "build.py") for path in sorted(SOURCES.glob(kind))]

    def get_outputs(self) -> list[str]:
        folder = Path(str(self.build_lib)) / HOME
        return [str(_builder().library_path(name, folder)) for name in _builder().INSTRUCTION_SETS]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Wheel(bdist_wheel):
    """For any Python 3; on the platform that the kernel was compiled for, if any."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class Compiled(Distribution):
    """Tells setuptools that the wheel belongs to one platform, though it has no extension modules."""

    def has_ext_modules(self) -> bool:
        return _builder().unsupported() is None


build.sub_commands.append(("build_kernel", None))
setup(distclass=Compiled, cmdclass={"build_kernel": BuildKernel, "bdist_wheel": Wheel})
