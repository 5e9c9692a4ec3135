"""Which block sizes a kernel runs with: a short list for each width and dtype, measured once on the machine.

The first call of a kernel with new widths, dtype, kind of mask and class of length measures the list by Triton's own
autotuner (a few seconds) and keeps the fastest for the life of the process. A candidate that needs more registers or
shared memory than there are is left out beforehand, by the estimates below. Under the interpreter nothing is measured:
blocks are small and of unequal sides, so that short tests cross their edges.
"""

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from diffattn.ops.triton.language import triton

MAX_WIDTH, MAX_VALUE_WIDTH = 256, 512


@dataclass(frozen=True)
class Blocks:
    """One way to run a kernel: rows (queries) and keys of a tile, channels of V, warps, loads in flight."""

    rows: int
    keys: int
    channels: int
    warps: int
    stages: int

    def named(self) -> dict[str, int]:
        """The sizes under the names of the kernels' parameters."""
        return {"BLOCK_M": self.rows, "BLOCK_N": self.keys, "BLOCK_E": self.channels}


@dataclass(frozen=True)
class Shape:
    """What decides about blocks: padded widths, bytes of a number, maps, and whether they share their keys."""

    width: int
    value_width: int
    size: int
    maps: int
    shared_keys: bool

    def key_bytes(self, channels: int) -> int:
        """Of one key: its rows in K1, K2 and V."""
        return self.size * (self.width * (1 if self.shared_keys else self.maps) + channels)

    def query_bytes(self, channels: int) -> int:
        """Of one query: its rows in Q1, Q2 and dO."""
        return self.size * (self.width * self.maps + channels)


def padded(width: int) -> int:
    """The power of two that a tile takes for a width; a product wants at least 16."""
    return max(16, 1 << (width - 1).bit_length())


# Rows, keys, warps, loads in flight. 16 bits: products on tensor cores. 32 bits: on the ordinary units, every
# multiplication an instruction of its own, so that larger blocks only make longer programs.
_NARROW = [
    (128, 64, 8, 3),
    (128, 128, 8, 2),
    (64, 64, 4, 3),
    (128, 32, 8, 3),
    (64, 64, 8, 2),
    (64, 32, 4, 3),
    (32, 64, 8, 2),
    (32, 32, 8, 2),
    (16, 32, 4, 1),
    (16, 16, 4, 1),
]
_WIDE = [(32, 32, 8, 1), (16, 32, 4, 1), (16, 16, 4, 1)]
MEASURED = 5
"""Candidates that are measured, of those that fit."""


def forward_blocks(shape: Shape, limit: int, accumulators: int) -> list[Blocks]:
    """For the forward kernels: a row carries its accumulators and scores."""
    channels = min(shape.value_width, 256)
    slices = [channels, 128] if shape.value_width > 128 else [channels]
    return _fitting(
        shape,
        slices,
        limit,
        registers=lambda b: b.rows * (accumulators * b.channels + 2 * b.keys),
        memory=lambda b: b.rows * shape.query_bytes(0) + b.stages * b.keys * shape.key_bytes(b.channels),
    )


def queries_blocks(shape: Shape, limit: int) -> list[Blocks]:
    """For the gradients of queries: a row carries two gradients, scores and dA."""
    return _fitting(
        shape,
        [shape.value_width],
        limit,
        registers=lambda b: b.rows * (shape.maps * shape.width + 3 * b.keys),
        memory=lambda b: b.rows * shape.query_bytes(b.channels) + b.stages * b.keys * shape.key_bytes(b.channels),
    )


def keys_blocks(shape: Shape, limit: int) -> list[Blocks]:
    """For the gradients of keys: the roles of rows and keys are exchanged, the larger side being the keys."""
    found = _fitting(
        shape,
        [shape.value_width],
        limit,
        registers=lambda b: b.rows * (shape.key_bytes(b.channels) // shape.size + 3 * b.keys),
        memory=lambda b: b.rows * shape.key_bytes(b.channels) + b.stages * b.keys * shape.query_bytes(b.channels),
    )
    return [Blocks(b.keys, b.rows, b.channels, b.warps, b.stages) for b in found]


def decode_blocks(shape: Shape, limit: int, rows: int) -> list[Blocks]:
    """For decoding: rows are given, and the cache is to be read with many loads in flight."""
    channels = min(shape.value_width, 256)
    options = [(64, 4, 3), (128, 4, 2), (32, 4, 4), (32, 4, 2), (16, 4, 1)]
    every = [Blocks(rows, keys, channels, warps, stages) for keys, warps, stages in options]
    fits = [b for b in every if rows * shape.query_bytes(0) + b.stages * b.keys * shape.key_bytes(channels) <= limit]
    return (fits if shape.size == 2 else [b for b in fits if b.keys <= 32])[:MEASURED] or every[-1:]


def _fitting(
    shape: Shape, slices: list[int], limit: int, registers: Callable[[Blocks], int], memory: Callable[[Blocks], int]
) -> list[Blocks]:
    sides = _NARROW if shape.size == 2 else _WIDE
    every = [Blocks(rows, keys, c, warps, stages) for rows, keys, warps, stages in sides for c in slices]
    # 255 registers for each of 32 threads of a warp; a fifth is left for addresses and what the estimate omits.
    fits = [b for b in every if registers(b) <= 200 * 32 * b.warps and memory(b) <= limit]
    return fits[:MEASURED] or every[-1:]


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have."""
    properties = torch.cuda.get_device_properties(device)
    # Not in the properties of an AMD GPU.
    return getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)


def length_class(tokens: int) -> int:
    """Lengths whose fastest blocks are taken to be the same: up to 512, 2048, 8192, and beyond."""
    return sum(tokens > bound for bound in (512, 2048, 8192))


@functools.cache
def tuned(kernel: Any, blocks: tuple[Blocks, ...], key: Hashable) -> Any:
    """The kernel with its block sizes to be chosen at its first launch for this `key`."""
    configs = [
        triton.Config(
            {name: value for name, value in b.named().items() if name in kernel.arg_names},
            num_warps=b.warps,
            num_stages=b.stages,
        )
        for b in blocks
    ]
    return triton.autotune(configs=configs, key=[])(kernel)
