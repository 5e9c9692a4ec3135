"""Random calls at the sizes of the fused CPU kernel, for hypothesis, and how far its results may be from the truth.

B batch, T queries, S keys, H output heads, G key/value groups, D query/key width, E value width.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from diffattn.ops import attention, attention_maps, diff_attention, diff_attention_maps, implementations

_WHY_NOT = implementations().get("cpu", "it is not registered")
needs_kernel = pytest.mark.skipif(_WHY_NOT is not None, reason=f"no fused CPU kernel here: {_WHY_NOT}")

# The kernel works on 6 rows, 8 or 16 lanes, 64 queries and 128 keys at a time.
SHORT = (1, 2, 3, 5, 6, 7, 8, 9, 13, 15, 16, 17, 20, 31, 33)
LONG = (63, 64, 65, 100, 127, 128, 129, 150, 192, 200, 257)
LAM_SHAPES = ("number", "scalar", "head", "batch", "token", "batch and head", "head and token", "all")


@dataclass
class KernelCase:
    """One call, its numbers in float64 but exact in `dtype`; q2 None: ordinary attention, with or without a sink."""

    dtype: torch.dtype
    q1: Tensor
    k1: Tensor
    q2: Tensor | None
    k2: Tensor | None
    v: Tensor
    lam: float | Tensor | None
    sink: Tensor | None
    cotangent: Tensor
    """[B, H, T, E]: what the gradients are taken with."""
    restrictions: dict[str, Any] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        return self.restrictions.get("scale") or self.q1.shape[-1] ** -0.5 * (self.restrictions.get("scale") is None)

    def tensors(self) -> dict[str, Tensor]:
        """What a gradient is taken of; k2 is missing where the maps share their keys."""
        shared = self.k2 is self.k1
        named = {"q1": self.q1, "k1": self.k1, "q2": self.q2, "k2": None if shared else self.k2, "v": self.v}
        named |= {"lam": self.lam, "sink": self.sink}
        return {name: x for name, x in named.items() if isinstance(x, Tensor)}

    def result(self, impl: str, dtype: torch.dtype, **changed: Tensor) -> Tensor:
        """The operator's result in a dtype, for the tensors of this case or for those given instead."""
        at = {name: x.to(dtype if name not in ("lam", "sink") else _wide(dtype)) for name, x in self.tensors().items()}
        at |= changed
        given = {name: x.to(_wide(dtype)) if _is_float(x) else x for name, x in self.restrictions.items()}
        if self.q2 is None:
            return attention(at["q1"], at["k1"], at["v"], sink=at.get("sink"), **given, impl=impl)
        k2 = at["k1"] if self.k2 is self.k1 else at["k2"]
        lam = at.get("lam", self.lam)
        return diff_attention(at["q1"], at["k1"], at["q2"], k2, at["v"], lam, **given, impl=impl)

    def gradients(self, impl: str, dtype: torch.dtype) -> dict[str, Tensor]:
        """The result and the gradient of every tensor."""
        leaves = {
            name: x.to(dtype if name not in ("lam", "sink") else _wide(dtype)).requires_grad_()
            for name, x in self.tensors().items()
        }
        out = self.result(impl, dtype, **leaves)
        found = torch.autograd.grad(out, list(leaves.values()), self.cotangent.to(out.dtype))
        return {"out": out.detach(), **dict(zip(leaves, found, strict=True))}


def truth_and_sizes(case: KernelCase) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Result and gradients in float64, and of each the sum of its terms' absolute values: its rounding scales with it.

    Where terms cancel (lam = 1, one key, rows that are nearly saturated) the truth may be as small as it likes.
    """
    truth = case.gradients("reference", torch.float64)
    share = case.q1.shape[1] // case.k1.shape[1]
    v, g = case.v.repeat_interleave(share, 1).abs(), case.cotangent.abs()
    to_map = g @ v.mT
    plain = case.restrictions
    if case.q2 is None:
        maps = [attention_maps(case.q1, case.k1, sink=case.sink, **plain)]
        factors: list[Any] = [1.0]
    else:
        maps = list(diff_attention_maps(case.q1, case.k1, case.q2, case.k2, **plain))
        lam = case.lam.abs() if isinstance(case.lam, Tensor) else abs(case.lam or 0.0)
        factors = [1.0, lam]
    sizes = dict.fromkeys(truth, torch.zeros(()))
    sizes["out"] = sum(c * a for c, a in zip(factors, maps, strict=True)) @ v
    sizes["v"] = _grouped(sum(c * a for c, a in zip(factors, maps, strict=True)).mT @ g, share)
    for number, (weights, factor) in enumerate(zip(maps, factors, strict=True), start=1):
        of_row = (weights * to_map).sum(-1, keepdim=True)
        of_logits = weights * (to_map + of_row) * factor * abs(case.scale)
        q = case.q1 if number == 1 else case.q2
        k = case.k1 if number == 1 or f"k{number}" not in truth else case.k2
        assert q is not None and k is not None
        sizes[f"q{number}"] = of_logits @ k.abs().repeat_interleave(share, 1)
        key = f"k{number}" if f"k{number}" in truth else "k1"
        sizes[key] = sizes[key] + _grouped(of_logits.mT @ q.abs(), share)
        if number == 2 and "lam" in truth:
            sizes["lam"] = of_row.sum_to_size(truth["lam"].shape)
        if "sink" in truth:
            sizes["sink"] = ((1 - weights.sum(-1, keepdim=True)) * of_row).sum((0, 2, 3))
    return truth, sizes


def largest_logit(case: KernelCase) -> float:
    """Of any pair, visible or not: float32 knows a logit to about this times its rounding."""
    share = case.q1.shape[1] // case.k1.shape[1]
    pairs = [(case.q1, case.k1)] if case.q2 is None else [(case.q1, case.k1), (case.q2, case.k2)]
    logits = [abs(case.scale) * (q @ k.repeat_interleave(share, 1).mT).abs().max().item() for q, k in pairs]
    mask = case.restrictions.get("attn_mask")
    if mask is not None and _is_float(mask):
        logits.append(mask.masked_fill(mask == -torch.inf, 0.0).abs().max().item())
    if case.restrictions.get("alibi") is not None:
        logits.append(case.restrictions["alibi"].max().item() * max(case.q1.shape[2], case.k1.shape[2]))
    return max(logits)


@st.composite
def kernel_cases(draw: st.DrawFn, dtype: torch.dtype = torch.float32, maps: int = 2) -> KernelCase:
    """Half of them of several blocks, and then of narrow heads: T * S * (D + E) stays below some millions."""
    size, long = st.integers, draw(st.booleans())
    batch, groups, share = draw(size(1, 2)), draw(size(1, 2)), draw(size(1, 2 if long else 3))
    queries, keys = (draw(st.sampled_from(LONG if long else SHORT)) for _ in range(2))
    keys = draw(st.sampled_from([queries, keys, 1 if long else 129]))
    width = 8 * draw(st.sampled_from([2, 3, 5, 8] if long else [32, 17, 31, 16, 9, 8, 5, 4, 3, 2]))
    value_width = 8 * draw(st.sampled_from([1, 2, 3, 5, 8, 16] if long else [64, 61, 33, 32, 17, 16, 8, 3, 2, 1]))
    heads = groups * share
    generator = torch.Generator().manual_seed(draw(size(0, 2**31)))

    def normal(*shape: int, exact: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator).to(exact).double()

    k1, q2, k2, lam, sink = normal(batch, groups, keys, width), None, None, None, None
    if maps == 2:
        q2 = normal(batch, heads, queries, width)
        k2 = k1 if draw(st.booleans()) else normal(batch, groups, keys, width)
        lam = _lam(draw, lambda *shape: normal(*shape, exact=torch.float32), batch, heads, queries)
    elif draw(st.booleans()):
        sink = normal(heads, exact=torch.float32)
    return KernelCase(
        dtype,
        normal(batch, heads, queries, width),
        k1,
        q2,
        k2,
        normal(batch, groups, keys, value_width),
        lam,
        sink,
        normal(batch, heads, queries, value_width),
        _restrictions(draw, generator, batch, heads, queries, keys),
    )


def _lam(draw: st.DrawFn, normal: Any, batch: int, heads: int, queries: int) -> float | Tensor:
    shapes = {
        "scalar": (),
        "head": (heads, 1, 1),
        "batch": (batch, 1, 1, 1),
        "token": (queries, 1),
        "batch and head": (batch, heads, 1, 1),
        "head and token": (heads, queries, 1),
        "all": (batch, heads, queries, 1),
    }
    kind = draw(st.sampled_from(LAM_SHAPES))
    return draw(st.sampled_from([-0.5, 0.0, 1.0, 1.75])) if kind == "number" else normal(*shapes[kind])


def _restrictions(
    draw: st.DrawFn, generator: torch.Generator, batch: int, heads: int, queries: int, keys: int
) -> dict[str, Any]:
    names = ["is_causal", "window", "documents", "key_lengths", "alibi", "scale", "bool mask", "float mask"]
    wanted = draw(st.sets(st.sampled_from(names)))
    some: dict[str, Any] = {"is_causal": bool(wanted & {"is_causal", "window"})}
    if "window" in wanted:
        some["window"] = draw(st.one_of(st.integers(1, keys + 1), st.sampled_from([1, 64, 65, 128])))
    if "documents" in wanted and queries <= keys:
        some["documents"] = _documents(draw, generator, batch, keys)
    if "key_lengths" in wanted:
        some["key_lengths"] = torch.randint(0, keys + 1, (batch,), generator=generator)
    if "alibi" in wanted:
        some["alibi"] = torch.rand(heads, generator=generator).double()
    if "scale" in wanted:
        some["scale"] = draw(st.sampled_from([-0.2, 0.0, 0.05, 0.5]))
    if wanted & {"bool mask", "float mask"}:
        shape = [n if draw(st.booleans()) else 1 for n in (batch, heads, queries, keys)][draw(st.integers(0, 3)) :]
        hidden = torch.rand(shape, generator=generator) < 0.3
        if len(shape) > 1:
            # Some rows have nothing to attend.
            hidden |= torch.rand((*shape[:-1], 1), generator=generator) < 0.2
        floats = torch.randn(shape, generator=generator).double().masked_fill(hidden, -torch.inf)
        some["attn_mask"] = floats if "float mask" in wanted else ~hidden
    return some


def _documents(draw: st.DrawFn, generator: torch.Generator, batch: int, keys: int) -> Tensor:
    """Ids in runs, as packing makes them, or in any order; some of them padding."""
    ids = torch.randint(-2, 5, (batch, keys), generator=generator)
    if draw(st.booleans()):
        starts = torch.rand(batch, keys, generator=generator) < 2 / keys
        ids = ids.gather(1, torch.where(starts, torch.arange(keys), 0).cummax(1).values)
    return ids.to(draw(st.sampled_from([torch.int32, torch.int64])))


def _grouped(x: Tensor, share: int) -> Tensor:
    """[B, H, ...] -> [B, G, ...]: summed over the heads of a group."""
    return x.unflatten(1, (-1, share)).sum(2)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


ROUNDING = {torch.float32: 2e-7, torch.bfloat16: 2.0**-8}
"""Of a result relative to its terms; float32 is measured at 7e-8, and bfloat16 may round operands of products too."""


def assert_near(case: KernelCase, found: dict[str, Tensor]) -> None:
    """Results and gradients by name are the truth to rounding, in the Euclidean norm of each tensor."""
    truth, sizes = truth_and_sizes(case)
    allowed = ROUNDING[case.dtype] * (1 + (largest_logit(case) if case.dtype == torch.float32 else 0.0))
    for name, value in found.items():
        error = (value.double() - truth[name]).norm()
        assert error <= allowed * sizes[name].norm(), f"{name}: {error} of {sizes[name].norm()}"


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fresh tensors hold NaN until something is written."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """With another number of torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
