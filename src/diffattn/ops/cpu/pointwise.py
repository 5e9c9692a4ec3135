"""The elementwise kernels of pointwise.h as operators of torch: plain passes, without gradients of their own.

`diffattn.ops.pointwise` and `diffattn.ops.positions` put them together and hold their twins in PyTorch.
"""

import functools
from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter

from diffattn.ops.call import transformed
from diffattn.ops.cpu import library

_DTYPES = {torch.float32: library.FLOAT32, torch.bfloat16: library.BFLOAT16}
_KINDS = (Tensor, Parameter, FakeTensor)
_Strides = c_int64 * 3
_ARGUMENTS = {
    "diffattn_norm_parts": (c_int64,),
    "diffattn_norm_forward": (c_int32, *[c_void_p] * 4, c_int64, c_int64, c_float, c_int32),
    "diffattn_norm_backward": (c_int32, *[c_void_p] * 6, c_int64, c_int64, c_int32),
    "diffattn_swiglu_forward": (c_int32, *[c_void_p] * 3, c_int64, c_int32),
    "diffattn_swiglu_backward": (c_int32, *[c_void_p] * 5, c_int64, c_int32),
    "diffattn_rotary": (
        *(c_int32, c_void_p, _Strides, c_void_p, _Strides, c_void_p, c_void_p, c_int64, c_int32),
        *(c_int64, c_int64, c_int64, c_int64, c_int64, c_int32),
    ),
}


def serves(*operands: Tensor) -> bool:
    """Whether the kernels can take these operands, all of one dtype.

    Compilers fuse the plain form themselves; transforms (vmap, jvp) and subclasses of Tensor have rules for it only,
    except fake tensors, which have shapes and no values: with them memory is counted.
    """
    if library.KERNEL is None or torch.compiler.is_compiling() or transformed():
        return False
    dtype = operands[0].dtype
    return dtype in _DTYPES and all(
        x.is_cpu and x.dtype == dtype and x.numel() > 0 and type(x) in _KINDS for x in operands
    )


def _norm_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    out, inverse_root = _new_normed(x, weight, eps)
    _run(
        *("diffattn_norm_forward", x, weight.float().contiguous(), out, inverse_root),
        *(inverse_root.numel(), x.shape[-1], eps),
    )
    return out, inverse_root


def _new_normed(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)


def _norm_backward(x: Tensor, weight: Tensor, inverse_root: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    rows, width = inverse_root.numel(), x.shape[-1]
    parts = x.new_empty((_function("diffattn_norm_parts")(rows), width), dtype=torch.float32)
    to_x = torch.empty_like(x)
    _run("diffattn_norm_backward", x, weight.float().contiguous(), inverse_root, grad, to_x, parts, rows, width)
    return to_x, parts.sum(0).to(weight.dtype)


def _new_norm_gradients(x: Tensor, weight: Tensor, inverse_root: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _swiglu_forward(gate: Tensor, up: Tensor) -> Tensor:
    out = _new_product(gate, up)
    _run("diffattn_swiglu_forward", gate, up, out, gate.numel())
    return out


def _new_product(gate: Tensor, up: Tensor) -> Tensor:
    return torch.empty_like(gate)


def _swiglu_backward(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    to_gate, to_up = _new_factors(gate, up, grad)
    _run("diffattn_swiglu_backward", gate, up, grad, to_gate, to_up, gate.numel())
    return to_gate, to_up


def _new_factors(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate), torch.empty_like(up)


def _rotary(x: Tensor, cos: Tensor, sin: Tensor, backwards: bool) -> Tensor:
    batch, heads, positions, width = x.shape
    turned = 2 * cos.shape[-1]
    out = _new_turned(x, cos, sin, backwards)
    _run(
        *("diffattn_rotary", x, _Strides(*x.stride()[:3]), out, _Strides(*out.stride()[:3]), cos, sin),
        *(positions * turned if cos.dim() == 3 and cos.shape[0] > 1 else 0, backwards),
        *(batch, heads, positions, width, turned),
    )
    return out


def _new_turned(x: Tensor, cos: Tensor, sin: Tensor, backwards: bool) -> Tensor:
    batch, heads, positions, width = x.shape
    # Heads beside each other, as the projections write and read them.
    return x.new_empty(batch, positions, heads, width).transpose(1, 2)


def _run(name: str, x: Tensor, *arguments: Any) -> None:
    given = (argument.data_ptr() if isinstance(argument, Tensor) else argument for argument in (x, *arguments))
    _function(name)(_DTYPES[x.dtype], *given, torch.get_num_threads())


@functools.cache
def _function(name: str) -> Callable[..., Any]:
    function = getattr(library.KERNEL, name)
    function.argtypes, function.restype = _ARGUMENTS[name], c_int64 if name == "diffattn_norm_parts" else None
    return function


for _name, _schema, _kernel, _shapes in (
    (
        "norm_forward",
        "(Tensor x, Tensor weight, float eps) -> (Tensor out, Tensor inverse_root)",
        *(_norm_forward, _new_normed),
    ),
    (
        "norm_backward",
        "(Tensor x, Tensor weight, Tensor inverse_root, Tensor grad) -> (Tensor to_x, Tensor to_weight)",
        *(_norm_backward, _new_norm_gradients),
    ),
    ("swiglu_forward", "(Tensor gate, Tensor up) -> Tensor", _swiglu_forward, _new_product),
    (
        "swiglu_backward",
        "(Tensor gate, Tensor up, Tensor grad) -> (Tensor to_gate, Tensor to_up)",
        *(_swiglu_backward, _new_factors),
    ),
    ("rotary", "(Tensor x, Tensor cos, Tensor sin, bool backwards) -> Tensor", _rotary, _new_turned),
):
    torch.library.define(f"diffattn::{_name}", _schema)
    torch.library.impl(f"diffattn::{_name}", "cpu")(_kernel)
    torch.library.register_fake(f"diffattn::{_name}")(_shapes)

norm_forward, norm_backward = torch.ops.diffattn.norm_forward.default, torch.ops.diffattn.norm_backward.default
swiglu_forward, swiglu_backward = torch.ops.diffattn.swiglu_forward.default, torch.ops.diffattn.swiglu_backward.default
rotary = torch.ops.diffattn.rotary.default
