"""Which implementations run here, which calls they serve, and where each is tested.

An implementation that serves only float32 and wide heads runs the same tests as the others in its own dtype and width,
with tolerances of float32.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from diffattn.ops.call import Call
from diffattn.ops.dispatch import IMPLEMENTATIONS
from diffattn.ops.masks import Restrictions


@dataclass(frozen=True)
class Home:
    """A dtype, a head width and the tolerance of results of order 1 there, for `assert_close`."""

    dtype: torch.dtype
    width: int
    close: dict[str, float]


# Sums in another order: the rounding of a few hundred terms of order 1.
_EXACT = Home(torch.float64, 4, {"rtol": 1e-10, "atol": 1e-11})
_SINGLE = Home(torch.float32, 16, {"rtol": 1e-5, "atol": 1e-5})


def serves(impl: str, dtype: torch.dtype, width: int) -> bool:
    """Whether it runs here and takes heads of this dtype, D = E = width; `auto` and unknown names are not judged."""
    if impl not in IMPLEMENTATIONS:
        return True
    module = IMPLEMENTATIONS[impl]
    x = torch.zeros(1, 1, 1, width, dtype=dtype)
    call = Call((x, x), (x, x), x, 0.5, None, Restrictions(), 1.0)
    return module.unavailable() is None and module.refuses(call) is None


def serving(dtype: torch.dtype, width: int) -> list[str]:
    """The names of those that serve this dtype and width here, `auto` not among them."""
    return [impl for impl in IMPLEMENTATIONS if serves(impl, dtype, width)]


def home(impl: str) -> Home:
    """Float64 and narrow heads where it serves them, else float32 and heads of 16."""
    return _EXACT if serves(impl, _EXACT.dtype, _EXACT.width) else _SINGLE


def narrowest(impl: str) -> dict[str, int]:
    """The option that a layer's config needs for heads as wide as the implementation wants them; mostly nothing."""
    return {"head_dim": home(impl).width} if home(impl) is _SINGLE else {}


def with_dtypes(*dtypes: torch.dtype, width: int) -> Any:
    """Parametrises a test over every `impl`, `auto` too, with each `dtype` that it serves."""
    pairs = [(impl, dtype) for dtype in dtypes for impl in ["auto", *serving(dtype, width)]]
    return pytest.mark.parametrize(("impl", "dtype"), pairs, ids=[f"{impl}-{str(dtype)[6:]}" for impl, dtype in pairs])


RUNNING = serving(_SINGLE.dtype, _SINGLE.width)
"""Everything that runs here, each at its `home`."""
