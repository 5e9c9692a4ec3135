"""Triton's names for the kernels of this package: the only file that imports triton.

Where Triton is not installed (macOS, Windows, arm64, a CPU-only machine) stand-ins take their place, so that every
module of the package can be imported, read and checked; `diffattn.ops.triton.unavailable` keeps them from being called.
Triton decides at its first import whether functions are compiled or, under TRITON_INTERPRET=1, run by its interpreter.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

triton: Any
tl: Any
try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

if TYPE_CHECKING:
    constexpr: TypeAlias = Any
else:
    constexpr = None if triton is None else tl.constexpr


def jit(function: Callable[..., Any]) -> Any:
    """Marks a kernel, or a function that kernels call."""
    return function if triton is None else triton.jit(function)


INTERPRETED: bool = triton is not None and triton.knobs.runtime.interpret
"""Whether kernels run on the CPU, operation by operation."""

# Kernels may read globals that are constexpr only.
LOG2E: Any = 1.4426950408889634 if triton is None else tl.constexpr(1.4426950408889634)
"""exp(x) = exp2(x * LOG2E), and exp2 is what a GPU computes."""
NOTHING: Any = float("-inf") if triton is None else tl.constexpr(float("-inf"))
"""The logit of a key that may not be attended."""


def _let_scalars_be_indices() -> None:
    """The interpreter of Triton 3.6 holds scalars as arrays [1], which NumPy 2.4 no longer turns into numbers."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if INTERPRETED:
    _let_scalars_be_indices()
