"""Random calls of the operators, for hypothesis: shapes, groups, every restriction alone and combined, lam."""

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

LAM_SHAPES = ("number", "scalar", "head", "batch", "token", "all")


@dataclass
class Call:
    """One call in float64: operands, lam, and the restrictions as keyword arguments."""

    q1: Tensor
    k1: Tensor
    q2: Tensor
    k2: Tensor
    v: Tensor
    lam: float | Tensor
    restrictions: dict[str, Any] = field(default_factory=dict)
    sink: Tensor | None = None

    def operands(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float | Tensor]:
        return self.q1, self.k1, self.q2, self.k2, self.v, self.lam

    def leaves(self) -> list[Tensor]:
        """Everything a gradient is taken of."""
        mask = self.restrictions.get("attn_mask")
        maybe = [*self.operands(), self.sink, mask if mask is not None and mask.is_floating_point() else None]
        return [x for x in maybe if isinstance(x, Tensor)]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    size = st.integers
    batch, groups, share = draw(size(1, 2)), draw(size(1, 3)), draw(size(1, 3))
    queries, keys, width, value_width = draw(size(1, 6)), draw(size(1, 7)), draw(size(1, 4)), draw(size(1, 6))
    heads = groups * share
    generator = torch.Generator().manual_seed(draw(size(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return 2 * torch.randn(shape, generator=generator, dtype=torch.float64)

    k1 = normal(batch, groups, keys, width)
    k2 = k1 if draw(st.booleans()) else normal(batch, groups, keys, width)
    call = Call(
        normal(batch, heads, queries, width),
        k1,
        normal(batch, heads, queries, width),
        k2,
        normal(batch, groups, keys, value_width),
        _lam(draw, normal, batch, heads, queries),
        _restrictions(draw, normal, generator, batch, heads, queries, keys),
    )
    call.sink = normal(heads) if draw(st.booleans()) else None
    return call


def _lam(draw: st.DrawFn, normal: Any, batch: int, heads: int, queries: int) -> float | Tensor:
    shapes = {
        "scalar": (),
        "head": (heads, 1, 1),
        "batch": (batch, 1, 1, 1),
        "token": (1, queries, 1),
        "all": (batch, heads, queries, 1),
    }
    kind = draw(st.sampled_from(LAM_SHAPES))
    return draw(st.sampled_from([-0.5, 0.0, 1.0, 1.7])) if kind == "number" else normal(*shapes[kind])


def _restrictions(
    draw: st.DrawFn, normal: Any, generator: torch.Generator, batch: int, heads: int, queries: int, keys: int
) -> dict[str, Any]:
    def whole(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    names = ["is_causal", "window", "documents", "key_lengths", "alibi", "scale", "bool mask", "float mask"]
    wanted = draw(st.sets(st.sampled_from(names)))
    some: dict[str, Any] = {"is_causal": bool(wanted & {"is_causal", "window"})}
    if "window" in wanted:
        some["window"] = draw(st.integers(1, keys + 1))
    if "documents" in wanted and queries <= keys:
        some["documents"] = whole(-1, 2, batch, keys).to(draw(st.sampled_from([torch.int32, torch.int64])))
    if "key_lengths" in wanted:
        some["key_lengths"] = whole(0, keys + 1, batch)
    if "alibi" in wanted:
        some["alibi"] = normal(heads).abs()
    if "scale" in wanted:
        some["scale"] = draw(st.sampled_from([-0.7, 0.0, 0.3, 1.0]))
    if wanted & {"bool mask", "float mask"}:
        full = (batch, heads, queries, keys)
        shape = [n if draw(st.booleans()) else 1 for n in full][draw(st.integers(0, 2)) :]
        hidden = torch.rand(shape, generator=generator) < 0.4
        floats = normal(*shape).masked_fill(hidden, -torch.inf)
        some["attn_mask"] = floats if "float mask" in wanted else ~hidden
    return some
