"""What the operators take, and how the kernel sees it: tensors become addresses and strides.

B batch, T queries, S keys, H output heads, G key/value groups, D query/key width, E value width, M maps.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from diffattn.ops.cpu import library


class Arguments(NamedTuple):
    """Of each operator, in this order."""

    q1: Tensor
    k1: Tensor
    q2: Tensor | None
    """None: ordinary attention, of one map."""
    k2: Tensor | None
    """None: the maps share k1."""
    v: Tensor
    lam: Tensor | None
    """Float32, broadcastable to [B, H, T, 1]; of two maps."""
    sink: Tensor | None
    """Float32 [H]; of one map."""
    weight: Tensor | None
    """Float32 [E]; with a norm only."""
    mask: Tensor | None
    """Bool or float32, broadcastable to [B, H, T, S]."""
    documents: Tensor | None
    """[B, S], int32 or int64."""
    lengths: Tensor | None
    """[B], int32 or int64."""
    alibi: Tensor | None
    """Float32 [H]."""
    is_causal: bool
    window: int
    """0: none."""
    scale: float
    eps: float | None
    """None: no norm, the gain alone."""
    gain: float

    @property
    def maps(self) -> int:
        """1 or 2."""
        return 1 if self.q2 is None else 2


def addressable(given: Arguments) -> Arguments:
    """The same in the layout that the kernel reads: no copy of operands and masks whose last axis is contiguous."""
    k1, k2 = unit_stride(given.k1), given.k2
    if k2 is not None:
        # By one address the kernel would know shared keys, whose gradients are one.
        k2 = k2.clone(memory_format=torch.contiguous_format) if k2.data_ptr() == k1.data_ptr() else unit_stride(k2)
    return given._replace(
        q1=unit_stride(given.q1),
        k1=k1,
        q2=None if given.q2 is None else unit_stride(given.q2),
        k2=k2,
        v=unit_stride(given.v),
        sink=_contiguous(given.sink),
        weight=_contiguous(given.weight),
        documents=_contiguous(given.documents, torch.int64),
        lengths=_contiguous(given.lengths, torch.int64),
        alibi=_contiguous(given.alibi),
    )


def unit_stride(x: Tensor) -> Tensor:
    """x, or a copy where its last axis is not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _contiguous(x: Tensor | None, dtype: torch.dtype = torch.float32) -> Tensor | None:
    return None if x is None else x.to(dtype).contiguous()


def described(given: Arguments) -> library.Call:
    """The kernel's view of `given`, which has to stay alive as long as it is used."""
    batch, heads, queries, width = given.q1.shape
    groups, keys, value_width = given.v.shape[1:]
    q, k = operand(given.q1), operand(given.k1)
    call = library.Call(
        dtype=library.FLOAT32 if given.q1.dtype == torch.float32 else library.BFLOAT16,
        maps=given.maps,
        batch=batch,
        heads=heads,
        groups=groups,
        queries=queries,
        keys=keys,
        width=width,
        value_width=value_width,
        q=(q, q if given.q2 is None else operand(given.q2)),
        k=(k, k if given.k2 is None else operand(given.k2)),
        v=operand(given.v),
        scale=given.scale,
        sink=address(given.sink),
        is_causal=given.is_causal,
        window=given.window,
        documents=address(given.documents),
        lengths=address(given.lengths),
        alibi=address(given.alibi),
        norm=given.eps is not None,
        weight=address(given.weight),
        eps=given.eps or 0.0,
        gain=given.gain,
        threads=torch.get_num_threads(),
    )
    if given.lam is not None:
        call.lam = given.lam.data_ptr()
        call.lam_strides[:] = given.lam.expand(batch, heads, queries, 1).stride()[:3]
    if given.mask is not None:
        call.mask = given.mask.data_ptr()
        call.mask_kind = library.BOOL_MASK if given.mask.dtype == torch.bool else library.FLOAT_MASK
        call.mask_strides[:] = given.mask.expand(batch, heads, queries, keys).stride()
    return call


def operand(x: Tensor) -> library.Operand:
    """[B, heads, positions, width] with a contiguous last axis."""
    return library.Operand(x.data_ptr(), *x.stride()[:3])


def address(x: Tensor | None) -> int | None:
    """Of its first element."""
    return None if x is None else x.data_ptr()


def saved(given: Arguments, statistics: Tensor, before_norm: Tensor) -> library.Saved:
    """What the forward pass writes and the backward pass reads."""
    step = statistics.stride(0) * statistics.element_size()
    start, maps = statistics.data_ptr(), given.maps
    found = library.Saved(maximum=start, inverse_sum=start + maps * step)
    if given.eps is not None:
        found.before_norm, found.inverse_root = before_norm.data_ptr(), start + 2 * maps * step
    return found


def like_operand(x: Tensor, width: int | None = None) -> Tensor:
    """Uninitialised [B, heads, N, width] in x's dtype, laid out as [B, N, heads, width]: heads join without a copy."""
    batch, heads, count, own = x.shape
    width = own if width is None else width
    strides = (count * heads * width, width, heads * width, 1)
    return torch.empty_strided((batch, heads, count, width), strides, dtype=x.dtype, device=x.device)


def new_statistics(given: Arguments) -> Tensor:
    """Maximum and inverse sum of each map, and with a norm the inverse root: [2 M or 2 M + 1, B, H, T]."""
    rows = 2 * given.maps + (given.eps is not None)
    return torch.empty((rows, *given.q1.shape[:3]), dtype=torch.float32, device=given.q1.device)


def new_before_norm(given: Arguments) -> Tensor:
    """The result before the norm, unrounded, [B, H, T, E], or nothing."""
    shape = (0,) if given.eps is None else (*given.q1.shape[:3], given.v.shape[-1])
    return torch.empty(shape, dtype=torch.float32, device=given.q1.device)


def new_gradients(given: Arguments) -> tuple[Tensor, ...]:
    """Of q1, k1, q2, k2, v; the sums of A * dA over keys [M, B, H, T]; of the weight. Empty where there is none."""
    operands = (given.q1, given.k1, given.q2, given.k2, given.v)
    sums = torch.empty((given.maps, *given.q1.shape[:3]), dtype=torch.float32, device=given.q1.device)
    of_operands = [given.q1.new_empty(0) if x is None else like_operand(x) for x in operands]
    weight = given.q1.new_empty(0) if given.weight is None else torch.empty_like(given.weight)
    return (*of_operands, sums, weight)
