"""From tensors to launched kernels: allocation, grids, block sizes.

B batch, T queries, S keys, H output heads, G key/value groups, D query/key width, E value width, M maps.
"""

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffattn.ops.triton import blocks as sizes
from diffattn.ops.triton.combined import combined_kernel
from diffattn.ops.triton.decode import combine_kernel, decode_kernel
from diffattn.ops.triton.forward import forward_kernel
from diffattn.ops.triton.gradient_keys import keys_kernel
from diffattn.ops.triton.gradient_queries import inner_kernel, queries_kernel
from diffattn.ops.triton.language import INTERPRETED
from diffattn.ops.triton.tiles import operand
from diffattn.ops.triton.visible import Rules

LOG2E = 1.4426950408889634
ROWS_OF_A_PART = 64
"""Queries times heads of a group that one program of the decoding kernel takes."""
SMALLEST_PART, MOST_PARTS = 256, 64
"""Keys that are worth a program of their own when decoding, and how many parts are put together again."""

_CONSTANTS = ("D", "E", "MAPS", "SHARED", "CAUSAL", "PLAIN", "OPEN", "SAVE", "BLOCK_R")


@dataclass(frozen=True)
class Problem:
    """A call's operands as the kernels take them."""

    q1: Tensor
    k1: Tensor
    q2: Tensor | None
    """None: one map."""
    k2: Tensor | None
    """None: k1 serves both maps."""
    v: Tensor
    lam: Tensor | None
    """[B, H, T, 1], float32; any strides."""
    sink: Tensor | None
    """[H], float32."""
    rules: Rules
    is_causal: bool
    scale: float

    @property
    def maps(self) -> int:
        return 1 if self.q2 is None else 2

    @property
    def shape(self) -> sizes.Shape:
        """What decides about block sizes."""
        widths = (sizes.padded(self.q1.shape[-1]), sizes.padded(self.v.shape[-1]))
        return sizes.Shape(*widths, self.q1.element_size(), self.maps, self.k2 is None)

    @property
    def plain(self) -> bool:
        """Whether raw products order the keys as the logits do: nothing is added, and the scale is positive."""
        return self.scale > 0 and self.rules.bias is None and self.rules.alibi is None and self.sink is None

    def arguments(self) -> dict[str, Any]:
        """Everything that kernels may ask for, under the names of their parameters."""
        (batch, heads, queries, width), groups, keys = self.q1.shape, self.k1.shape[1], self.k1.shape[2]
        tensors = {"q1": self.q1, "k1": self.k1, "q2": self.q2, "k2": self.k2, "v": self.v, "lam": self.lam}
        counts = {"B": batch, "H": heads, "G": groups, "T": queries, "S": keys, "D": width, "E": self.v.shape[-1]}
        looked_up = (self.rules.documents, self.rules.alibi, self.rules.shown, self.rules.bias)
        return {
            **{name: None if x is None else operand(x) for name, x in tensors.items()},
            **counts,
            "sink": self.sink,
            "rules": self.rules,
            "SCALE": self.scale,
            "FACTOR": self.scale * LOG2E,
            "MAPS": self.maps,
            "SHARED": self.k2 is None,
            "CAUSAL": self.is_causal,
            "PLAIN": self.plain,
            "OPEN": all(x is None for x in looked_up),
            "BLOCK_D": self.shape.width,
        }


def forward(problem: Problem, save: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The result; with `save` also A1 v and A2 v (of two maps) and each row's maximum and log-sum, [M, B, H, T]."""
    shape, (batch, heads, queries, _) = problem.shape, problem.q1.shape
    out = rows_first(problem.q1, heads, queries, problem.v.shape[-1])
    both = save and problem.maps == 2
    first, second = (torch.empty_like(out) if both else out.new_empty(0) for _ in range(2))
    rows = (problem.maps, batch, heads, queries) if save else (0,)
    maximum, log_sum = (torch.empty(rows, dtype=torch.float32, device=out.device) for _ in range(2))
    reads = {"first": operand(first), "second": operand(second)} if both else {"first": None, "second": None}
    arguments = {**problem.arguments(), **reads, "out": operand(out), "maximum": maximum, "log_sum": log_sum}
    combined = not save and problem.maps == 2 and shape.value_width > 128
    blocks = sizes.forward_blocks(shape, _shared_memory(out.device), accumulators=1 if combined else problem.maps)
    kernel = combined_kernel if combined else forward_kernel
    programs = _Programs(batch * heads, queries, "BLOCK_M", problem.v.shape[-1])
    _launch(kernel, blocks, programs, {**arguments, "SAVE": save}, problem)
    return out, first, second, maximum, log_sum


def backward(
    problem: Problem, grad: Tensor, first: Tensor, second: Tensor, maximum: Tensor, log_sum: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor]:
    """Gradients of q1, k1, q2, k2, v, and the inner products of `grad` with what each map read, [M, B, H, T].

    k1's gradient is the sum over both maps where they share their keys.
    """
    shape, (batch, heads, queries, width) = problem.shape, problem.q1.shape
    _, groups, keys, value_width = problem.v.shape
    inner = torch.empty_like(maximum)
    dq1 = rows_first(problem.q1, heads, queries, width)
    dk1 = rows_first(problem.k1, groups, keys, width)
    dq2 = None if problem.q2 is None else torch.empty_like(dq1)
    dk2 = None if problem.k2 is None else torch.empty_like(dk1)
    dv = rows_first(problem.v, groups, keys, value_width)
    reads = {"first": first, "second": None if problem.q2 is None else second}
    named = {"grad": grad, **reads, "dq1": dq1, "dk1": dk1, "dq2": dq2, "dk2": dk2, "dv": dv}
    arguments = {
        **problem.arguments(),
        **{name: None if x is None else operand(x) for name, x in named.items()},
        "maximum": maximum,
        "log_sum": log_sum,
        "inner": inner,
    }
    memory = _shared_memory(grad.device)
    by_rows = _Programs(batch * heads, queries, "BLOCK_M", value_width)
    whole = sizes.Blocks(8192 // shape.value_width, 16, shape.value_width, 4, 1)
    _launch(inner_kernel, [whole], by_rows, arguments, problem)
    _launch(queries_kernel, sizes.queries_blocks(shape, memory), by_rows, arguments, problem)
    by_keys = _Programs(batch * groups, keys, "BLOCK_N", value_width)
    _launch(keys_kernel, sizes.keys_blocks(shape, memory), by_keys, arguments, problem)
    return dq1, dk1, dq2, dk2, dv, inner


def decode(problem: Problem) -> Tensor:
    """The result for few queries on many keys, parallel over keys."""
    batch, heads, queries, _ = problem.q1.shape
    _, groups, keys, value_width = problem.v.shape
    out = rows_first(problem.q1, heads, queries, value_width)
    rows = min(ROWS_OF_A_PART, sizes.padded(heads // groups * queries))
    blocks = sizes.decode_blocks(problem.shape, _shared_memory(out.device), rows)
    programs = batch * groups * -(-(heads // groups * queries) // rows)
    splits = _splits(programs, keys if problem.rules.window is None else problem.rules.window + queries, out.device)
    parts = [
        torch.empty(splits, batch, heads, queries, value_width, dtype=torch.float32, device=out.device)
        for _ in range(problem.maps)
    ]
    maximum, total = (
        torch.empty(problem.maps, splits, batch, heads, queries, dtype=torch.float32, device=out.device)
        for _ in range(2)
    )
    arguments = {
        **problem.arguments(),
        "part1": parts[0],
        "part2": parts[-1],
        "maximum": maximum,
        "total": total,
        "out": operand(out),
        "SPLITS": splits,
        "PARTS": 1 << (splits - 1).bit_length(),
        "BLOCK_R": rows,
    }
    _launch(decode_kernel, blocks, _Parts(splits, programs, value_width), arguments, problem)
    slice_of_v = sizes.Blocks(1, 1, min(problem.shape.value_width, 128), 4, 1)
    _launch(combine_kernel, [slice_of_v], _Programs(batch * heads * queries, 1, "", value_width), arguments, problem)
    return out


def rows_first(like: Tensor, heads: int, positions: int, width: int) -> Tensor:
    """An empty [B, heads, positions, width] in which all heads of a position lie together, as projections want it."""
    return like.new_empty(like.shape[0], positions, heads, width).transpose(1, 2)


@dataclass(frozen=True)
class _Programs:
    """A grid: for each of `outer`, blocks of the `length` positions; slices of V where the kernel takes slices."""

    outer: int
    length: int
    block: str
    value_width: int

    def __call__(self, chosen: dict[str, Any]) -> tuple[int, ...]:
        blocks = 1 if not self.block else -(-self.length // int(chosen[self.block]))
        return self.outer * blocks, -(-self.value_width // int(chosen["BLOCK_E"]))


@dataclass(frozen=True)
class _Parts:
    """The grid of the decoding kernel."""

    splits: int
    programs: int
    value_width: int

    def __call__(self, chosen: dict[str, Any]) -> tuple[int, ...]:
        return self.splits, self.programs, -(-self.value_width // int(chosen["BLOCK_E"]))


def _launch(kernel: Any, blocks: list[sizes.Blocks], grid: Any, arguments: dict[str, Any], problem: Problem) -> None:
    """Runs a kernel with those of the arguments that it has parameters for."""
    given = {name: value for name, value in arguments.items() if name in kernel.arg_names}
    if not all(grid({"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_E": 16})):
        return
    if INTERPRETED:
        blocks = [dataclasses.replace(blocks[0], rows=16, keys=32)]
    constants = tuple(given.get(name) for name in _CONSTANTS)
    tokens = max(problem.q1.shape[2], problem.k1.shape[2])
    key = (problem.q1.device, problem.q1.dtype, constants, problem.rules.window, sizes.length_class(tokens))
    tuned = sizes.tuned(kernel, tuple(blocks), key)
    with _on(problem.q1.device):
        tuned[grid](**given)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _shared_memory(device: torch.device) -> int:
    return sizes.shared_memory(device) if device.type == "cuda" else 1 << 30


def _splits(programs: int, keys: int, device: torch.device) -> int:
    """Parts that fill the processors twice, none of them too short."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
    smallest = SMALLEST_PART if device.type == "cuda" else 32
    return max(1, min(-(-2 * processors // max(programs, 1)), -(-keys // smallest), MOST_PARTS))
