"""Differential attention as it can be had from torch alone, to be measured against. Imports nothing but torch.

B batch, H output heads, G key/value groups, T queries, S keys, D width of a query or key head, E width of a value head.
Inputs lie as a layer's projections leave them, [B, T, heads, width], heads paired adjacently, or in decoding as a cache
does, [B, heads, S, width]; every form reads views of the same tensors. The letters are those of the tables: (a) is not
differential attention but what it replaces.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

__all__ = ["FORMS", "Form", "Inputs", "Shape"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one call of version 1's attention; (a) has 2 H heads of D over 2 G groups, V of E / 2."""

    batch: int = 1
    heads: int = 4
    kv_heads: int = 4
    queries: int = 512
    keys: int = 512
    width: int = 64
    value_width: int = 128
    is_causal: bool = True
    window: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError, naming the size, for what no form can compute."""
        for name in ("batch", "heads", "kv_heads", "queries", "keys", "width", "value_width", "window"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise ValueError(f"{name}: got {given}, needs at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: got {self.kv_heads}, needs a divisor of the {self.heads} heads")
        if self.value_width % 2:
            raise ValueError(
                f"value_width: got {self.value_width}, needs an even number: ordinary heads take half each"
            )
        if self.is_causal and self.queries > self.keys:
            raise ValueError(f"keys: got {self.keys}, needs at least as many as the {self.queries} queries")
        if self.window is not None and not self.is_causal:
            raise ValueError("window: needs causal attention")

    @property
    def visible(self) -> int:
        """Pairs of a query and a key that it may attend to, in one head of one sequence."""
        if not self.is_causal:
            return self.queries * self.keys
        first, window = self.keys - self.queries, self.window or self.keys
        return sum(min(first + t + 1, window) for t in range(self.queries))

    @property
    def flops(self) -> int:
        """The least work of a forward pass, two maps and one product with V; (a) needs as much. Backward: twice."""
        return 2 * self.batch * self.heads * self.visible * (2 * self.width + self.value_width)

    @property
    def map_elements(self) -> int:
        """Elements of both maps of all heads."""
        return 2 * self.batch * self.heads * self.queries * self.keys


class Inputs:
    """Random tensors of a shape, and the views that the forms read."""

    def __init__(
        self, shape: Shape, dtype: torch.dtype, device: torch.device | str = "cpu", grad: bool = False, seed: int = 0
    ) -> None:
        source = torch.Generator().manual_seed(seed)

        def normal(length: int, heads: int, width: int, cached: bool = False) -> Tensor:
            drawn = torch.randn(shape.batch, length, heads, width, generator=source).to(device, dtype)
            return (drawn.transpose(1, 2).contiguous().transpose(1, 2) if cached else drawn).requires_grad_(grad)

        cached = shape.queries < shape.keys
        self.shape, self.dtype, self.device = shape, dtype, torch.device(device)
        self.q = normal(shape.queries, 2 * shape.heads, shape.width)
        self.k = normal(shape.keys, 2 * shape.kv_heads, shape.width, cached)
        self.v = normal(shape.keys, shape.kv_heads, shape.value_width, cached)
        wide = torch.promote_types(dtype, torch.float32)
        self.lam = torch.tensor(0.3, dtype=wide, device=device).requires_grad_(grad)
        self.upstream = normal(shape.queries, shape.heads, shape.value_width).detach()

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What a gradient is taken of."""
        return self.q, self.k, self.v, self.lam

    def in_double(self) -> "Inputs":
        """The same numbers in float64."""
        wide = object.__new__(Inputs)
        wide.shape, wide.dtype, wide.device = self.shape, torch.float64, self.device
        wide.q, wide.k, wide.v, wide.lam = (x.detach().double().requires_grad_(x.requires_grad) for x in self.leaves)
        wide.upstream = self.upstream.double()
        return wide

    def backward(self, out: Tensor) -> None:
        """Give the result of a form, of two maps or one, a gradient; the leaves have theirs afterwards."""
        upstream = self.upstream if out.shape[1] == self.shape.heads else _halves(self.upstream)
        out.backward(upstream.transpose(1, 2))

    def two_maps(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q1, k1, q2, k2, v: [B, H or G, T or S, D or E]."""
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        return q[:, 0::2], k[:, 0::2], q[:, 1::2], k[:, 1::2], v

    def one_map(self) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, 2H, T, D], k [B, 2G, S, D], v [B, 2G, S, E / 2] of the ordinary attention in its place."""
        cached = self.shape.queries < self.shape.keys and not self.v.requires_grad
        v = self._ordinary_cache if cached else _halves(self.v).transpose(1, 2)
        return self.q.transpose(1, 2), self.k.transpose(1, 2), v

    @cached_property
    def _ordinary_cache(self) -> Tensor:
        """V of one map as its own cache would have it, each head by itself."""
        return _halves(self.v).transpose(1, 2).contiguous()

    @property
    def square(self) -> bool:
        """The plain causal rule over as many queries as keys: torch's own flag serves."""
        shape = self.shape
        return shape.is_causal and shape.window is None and shape.queries == shape.keys

    @cached_property
    def mask(self) -> Tensor | None:
        """What the flag cannot say, [T, S], True = may attend; made once, so that it costs the forms nothing."""
        shape = self.shape
        if self.square or not shape.is_causal or (shape.queries == 1 and shape.window is None):
            return None
        return _may_attend(shape, self.device)

    @cached_property
    def block_mask(self) -> Any:
        """The same for FlexAttention."""
        shape = self.shape
        if not shape.is_causal:
            return None
        first, window = shape.keys - shape.queries, shape.window or shape.keys

        def rule(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
            return (s <= t + first) & (s > t + first - window)

        return create_block_mask(rule, None, None, shape.queries, shape.keys, self.device)


@dataclass(frozen=True)
class Form:
    """One way to compute the result, [B, H, T, E]; for `ordinary` [B, 2H, T, E / 2]."""

    letter: str
    title: str
    run: Callable[[Inputs], Tensor]
    refuses: Callable[[Inputs, bool], str | None]
    """(inputs, backward too?) -> why it cannot be measured."""


def ordinary(x: Inputs) -> Tensor:
    """(a) An ordinary Transformer's attention with the same projections: 2H heads of D."""
    return _sdpa(x, *x.one_map())


def formula(x: Inputs) -> Tensor:
    """(b) The naive mathematics: both maps as tensors, softmax in float32, their difference times V."""
    q, k, v = x.q.transpose(1, 2), x.k.transpose(1, 2), x.v.transpose(1, 2)
    # Maps 1 and 2 of output head h read key heads 2g and 2g + 1 of its group g = h // (H / G).
    share = x.shape.heads // x.shape.kv_heads
    k = _repeated(k.unflatten(1, (-1, 2)), share).flatten(1, 2)
    maps = _maps(x, q, k).unflatten(1, (-1, 2))
    combined = maps[:, :, 0] - x.lam.to(maps.dtype) * maps[:, :, 1]
    return combined @ _repeated(v, share)


def two_calls(x: Inputs) -> Tensor:
    """(c) One call for each map, V of its full width."""
    q1, k1, q2, k2, v = x.two_maps()
    return _difference(x, _sdpa(x, q1, k1, v), _sdpa(x, q2, k2, v))


def four_calls(x: Inputs) -> Tensor:
    """(d) One call for each map and half of V, for kernels that want V as wide as Q."""
    q1, k1, q2, k2, v = x.two_maps()
    halves = v.chunk(2, -1)
    return torch.cat([_difference(x, _sdpa(x, q1, k1, half), _sdpa(x, q2, k2, half)) for half in halves], -1)


def flex(x: Inputs) -> Tensor:
    """One compiled FlexAttention call for each map, V of its full width."""
    q1, k1, q2, k2, v = x.two_maps()
    options = {"block_mask": x.block_mask, "enable_gqa": x.shape.heads != x.shape.kv_heads}
    return _difference(x, _compiled_flex()(q1, k1, v, **options), _compiled_flex()(q2, k2, v, **options))


def ordinary_formula(x: Inputs) -> Tensor:
    """The naive mathematics of `ordinary`: in float64 the truth for it, as `formula` is for the others."""
    q, k, v = x.one_map()
    share = q.shape[1] // k.shape[1]
    return _maps(x, q, _repeated(k, share)) @ _repeated(v, share)


def _repeated(x: Tensor, share: int) -> Tensor:
    """Each group once for each of its heads."""
    return x if share == 1 else x.repeat_interleave(share, 1)


def _difference(x: Inputs, first: Tensor, second: Tensor) -> Tensor:
    return first - x.lam.to(first.dtype) * second


def _sdpa(x: Inputs, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=x.mask, is_causal=x.square, enable_gqa=grouped)


def _maps(x: Inputs, q: Tensor, k: Tensor) -> Tensor:
    logits = (q * x.shape.width**-0.5) @ k.mT
    if x.shape.is_causal:
        logits = logits.masked_fill(~_may_attend(x.shape, x.device), -math.inf)
    wide = torch.promote_types(x.dtype, torch.float32)
    return logits.softmax(-1, dtype=wide).to(x.dtype)


def _halves(x: Tensor) -> Tensor:
    """[B, T, H, E] -> [B, T, 2H, E / 2], a view."""
    return x.unflatten(3, (2, -1)).flatten(2, 3)


def _may_attend(shape: Shape, device: torch.device) -> Tensor:
    query_at = torch.arange(shape.keys - shape.queries, shape.keys, device=device)[:, None]
    key_at = torch.arange(shape.keys, device=device)
    return (key_at <= query_at) & (key_at > query_at - (shape.window or shape.keys))


_flex: list[Any] = []


def _compiled_flex() -> Any:
    if not _flex:
        _flex.append(torch.compile(flex_attention, dynamic=False))
    return _flex[0]


HELD_MAPS = 6
"""Tensors of the maps' size that the naive mathematics holds at once, forward and backward."""


def _always(x: Inputs, backward: bool) -> str | None:
    return None


def holds_maps(x: Inputs, backward: bool) -> str | None:
    """Refuses what might not fit into half of the memory that is left."""
    needed = HELD_MAPS * x.shape.map_elements * max(x.dtype.itemsize, 4)
    left = free_memory(x.device)
    if left is not None and needed > left / 2:
        return f"would hold about {needed / 1e9:.1f} GB of maps; {left / 1e9:.1f} GB are free"
    return None


def _two_calls_hold_maps(x: Inputs, backward: bool) -> str | None:
    # On a CPU torch has no fused kernel for V wider than Q.
    return holds_maps(x, backward) if x.device.type == "cpu" else None


def _flex_refuses(x: Inputs, backward: bool) -> str | None:
    if x.device.type == "cpu" and backward:
        return "FlexAttention has no backward pass on a CPU"
    return None


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be had on a device; None where nobody tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            found = dict(line.split(":", 1) for line in lines)
        return int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None


FORMS: dict[str, Form] = {
    "ordinary": Form("a", "SDPA, 2H heads of D", ordinary, _always),
    "formula": Form("b", "naive formula", formula, holds_maps),
    "two_calls": Form("c", "SDPA, two calls", two_calls, _two_calls_hold_maps),
    "four_calls": Form("d", "SDPA, four calls", four_calls, _always),
    "flex": Form("e", "FlexAttention, two calls", flex, _flex_refuses),
}
"""By name, in the order of the tables."""
