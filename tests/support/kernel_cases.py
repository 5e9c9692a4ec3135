"""Calls of a fused implementation against the reference: results with and without gradients, and the gradients."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffattn.ops import attention, diff_attention


@dataclass(frozen=True)
class Case:
    """Sizes and restrictions of one call; D query/key width, E value width."""

    batch: int = 1
    heads: int = 2
    groups: int = 1
    queries: int = 20
    keys: int = 35
    width: int = 16
    value_width: int = 32
    dtype: torch.dtype = torch.float32
    maps: int = 2
    shared_keys: bool = False
    lam: tuple[int, ...] | float = (2, 1, 1)
    sink: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    def leaves(self) -> list[Tensor]:
        """q, k and v of each map, lam, sink: what a gradient is taken of, as views of a layer's projections."""
        source = torch.Generator().manual_seed(self.queries * self.keys)

        def normal(length: int, heads: int, width: int) -> Tensor:
            x = torch.randn(self.batch, length, heads, width, generator=source)
            return x.to(self.device, self.dtype).transpose(1, 2)

        found = [normal(self.queries, self.heads, self.width) for _ in range(self.maps)]
        count = 1 if self.shared_keys else self.maps
        found += [normal(self.keys, self.groups, self.width) for _ in range(count)]
        found.append(normal(self.keys, self.groups, self.value_width))
        if self.maps == 2 and not isinstance(self.lam, float):
            found.append(torch.randn(self.lam, generator=source).to(self.device))
        if self.sink:
            found.append(torch.randn(self.heads, generator=source).to(self.device))
        return found

    def run(self, leaves: list[Tensor], impl: str) -> Tensor:
        """[B, H, T, E] of the operands that `leaves` lists."""
        rest = list(leaves)
        queries = [rest.pop(0) for _ in range(self.maps)]
        keys = [rest.pop(0) for _ in range(1 if self.shared_keys else self.maps)]
        v = rest.pop(0)
        given = {name: x.to(self.device) if isinstance(x, Tensor) else x for name, x in self.options.items()}
        if self.maps == 1:
            sink = rest.pop() if self.sink else None
            return attention(queries[0], keys[0], v, sink=sink, impl=impl, **given)
        lam = self.lam if isinstance(self.lam, float) else rest.pop()
        return diff_attention(queries[0], keys[0], queries[1], keys[-1], v, lam, impl=impl, **given)


# Sums in another order; in 16 bits a few roundings of operands, weights and results.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4 * 2.0**-11, torch.bfloat16: 4 * 2.0**-8}
"""Largest error allowed, relative to the largest entry of a tensor, or to 1 where that is more."""


def assert_as_reference(case: Case, impl: str) -> None:
    """Result, result without gradient, and each gradient, against the reference in float64."""
    leaves = [x.requires_grad_() for x in case.leaves()]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    wanted = case.run(exact, "reference")
    wanted_gradients = torch.autograd.grad(wanted.sin().sum(), exact)
    found = case.run(leaves, impl)
    gradients = torch.autograd.grad(found.float().sin().sum(), leaves)
    with torch.no_grad():
        alone = case.run(leaves, impl)
    names = ["result", "result without gradient", *(f"gradient {i}" for i in range(len(leaves)))]
    pairs = zip((found, alone, *gradients), (wanted, wanted, *wanted_gradients), strict=True)
    for name, (x, right) in zip(names, pairs, strict=True):
        assert x.shape == right.shape and x.isfinite().all(), name
        error = (x.double() - right).abs().max() / right.abs().max().clamp(min=1.0)
        assert error <= TOLERANCE[case.dtype], f"{name} is off by {error:.1e} of its largest entry"
