"""The kernel as operators of torch: `inference`, which keeps nothing, `forward` and `backward`.

Tensors or None, and numbers, go in (`Arguments` names them); fresh tensors come out.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from diffattn.ops.cpu import library
from diffattn.ops.cpu.arguments import (
    Arguments,
    address,
    addressable,
    described,
    like_operand,
    new_before_norm,
    new_gradients,
    new_statistics,
    operand,
    saved,
    unit_stride,
)

# Up to so many queries take the kernel that is parallel over keys.
FEW_QUERIES = 8

_SCHEMA = (
    "Tensor q1, Tensor k1, Tensor? q2, Tensor? k2, Tensor v, Tensor? lam, Tensor? sink, Tensor? weight, Tensor? mask, "
    "Tensor? documents, Tensor? lengths, Tensor? alibi, bool is_causal, int window, float scale, float? eps, float gain"
)
_RESULTS = {
    "inference": f"({_SCHEMA}) -> Tensor",
    "forward": f"({_SCHEMA}) -> (Tensor out, Tensor statistics, Tensor before_norm)",
    "backward": f"({_SCHEMA}, Tensor grad, Tensor statistics, Tensor before_norm) -> ("
    "Tensor of_q1, Tensor of_k1, Tensor of_q2, Tensor of_k2, Tensor of_v, Tensor row_sums, Tensor of_weight)",
}
for _name, _schema in _RESULTS.items():
    torch.library.define(f"diffattn::{_name}", _schema, tags=(torch.Tag.pt2_compliant_tag,))
# Naming the overload saves torch a search in each call.
inference, forward = torch.ops.diffattn.inference.default, torch.ops.diffattn.forward.default
backward = torch.ops.diffattn.backward.default
_TENSORS = 12
_DIFFERENTIABLE = 8


def _inference(*args: Any) -> Tensor:
    given = addressable(Arguments(*args))
    out = like_operand(given.q1, given.v.shape[-1])
    if _nothing_to_do(given, out):
        return out
    call, where = described(given), operand(out)
    if given.q1.shape[2] <= FEW_QUERIES:
        _kernel().diffattn_decode(ctypes.byref(call), ctypes.byref(where))
    else:
        _kernel().diffattn_forward(ctypes.byref(call), ctypes.byref(where), ctypes.byref(library.Saved()))
    return out


def _forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    given = addressable(Arguments(*args))
    out, statistics, before_norm = results = _new_results(given)
    if _nothing_to_do(given, *results):
        return results
    call, where, kept = described(given), operand(out), saved(given, statistics, before_norm)
    _kernel().diffattn_forward(ctypes.byref(call), ctypes.byref(where), ctypes.byref(kept))
    return results


def _backward(*args: Any) -> tuple[Tensor, ...]:
    given = addressable(Arguments(*args[:-3]))
    grad, statistics, before_norm = unit_stride(args[-3]), args[-2], args[-1]
    results = new_gradients(given)
    if _nothing_to_do(given, *results):
        return results
    q1, k1, q2, k2, v, row_sums, weight = results
    call, kept = described(given), saved(given, statistics, before_norm)
    parts = None
    if given.weight is not None:
        count = _kernel().diffattn_parts(ctypes.byref(call))
        parts = weight.new_empty(*given.k1.shape[:2], count, weight.shape[0])
    wanted = library.Gradients(
        out=operand(grad),
        q=(operand(q1), operand(q1 if given.q2 is None else q2)),
        k=(operand(k1), operand(k1 if given.k2 is None else k2)),
        v=operand(v),
        row_sums=row_sums.data_ptr(),
        weight=address(parts),
    )
    _kernel().diffattn_backward(ctypes.byref(call), ctypes.byref(kept), ctypes.byref(wanted))
    if parts is not None:
        torch.sum(parts, (0, 1, 2), out=weight)
    return results


def _kernel() -> ctypes.CDLL:
    assert library.KERNEL is not None, library.UNAVAILABLE
    return library.KERNEL


def _nothing_to_do(given: Arguments, *results: Tensor) -> bool:
    """Whether there are no queries or no keys; then everything is 0."""
    if given.q1.numel() and given.v.numel():
        return False
    for x in results:
        x.zero_()
    return True


def _fake_inference(*args: Any) -> Tensor:
    return like_operand(args[0], args[4].shape[-1])


def _fake_forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _new_results(Arguments(*args))


def _fake_backward(*args: Any) -> tuple[Tensor, ...]:
    return new_gradients(Arguments(*args[:-3]))


def _new_results(given: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    return like_operand(given.q1, given.v.shape[-1]), new_statistics(given), new_before_norm(given)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, statistics, before_norm = output
    ctx.mark_non_differentiable(statistics, before_norm)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_TENSORS], statistics, before_norm)
    ctx.numbers = inputs[_TENSORS:]


def _differentiate(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    none = (None,) * (_TENSORS - _DIFFERENTIABLE + len(ctx.numbers))
    if grad is None:
        return (None,) * _DIFFERENTIABLE + none
    *tensors, statistics, before_norm = ctx.saved_tensors
    given = Arguments(*tensors, *ctx.numbers)
    q1, k1, q2, k2, v, row_sums, weight = backward(*given, grad, statistics, before_norm)
    lam = sink = None
    if given.lam is not None and ctx.needs_input_grad[5]:
        lam = -row_sums[1, ..., None].sum_to_size(given.lam.shape)
    if given.sink is not None and ctx.needs_input_grad[6]:
        sink = -(_sink_weight(given.sink, statistics) * row_sums[0]).sum((0, 2))
    found = (
        q1,
        k1,
        None if given.q2 is None else q2,
        None if given.k2 is None else k2,
        v,
        lam,
        sink,
        None if given.weight is None else weight,
    )
    return found + none


def _sink_weight(sink: Tensor, statistics: Tensor) -> Tensor:
    """What the sink takes of each row of the one map, [B, H, T]; 0 where there is no row."""
    maximum, inverse_sum = statistics[0], statistics[1]
    return ((sink[:, None] - maximum).exp() * inverse_sum).masked_fill(inverse_sum == 0, 0.0)


def _refuse(ctx: Any, *_: Any) -> None:
    raise RuntimeError(
        "impl 'cpu' has no second derivative; use impl='reference' or impl='sdpa', which can be differentiated twice"
    )


torch.library.impl("diffattn::inference", "cpu", _inference)
torch.library.impl("diffattn::forward", "cpu", _forward)
torch.library.impl("diffattn::backward", "cpu", _backward)
torch.library.register_fake("diffattn::inference", _fake_inference)
torch.library.register_fake("diffattn::forward", _fake_forward)
torch.library.register_fake("diffattn::backward", _fake_backward)
torch.library.register_autograd("diffattn::forward", _differentiate, setup_context=_remember)
torch.library.register_autograd("diffattn::backward", _refuse)


class Eager(torch.autograd.Function):
    """The same rule without the detours of `register_autograd`, which take 0.1 ms a call; graphs take the operator."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        output = forward(*args)
        _remember(ctx, args, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, *grads)


@register_flop_formula([torch.ops.diffattn.inference, torch.ops.diffattn.forward])
def _forward_flops(q1: Any, k1: Any, q2: Any, k2: Any, v: Any, *_: Any, **__: Any) -> int:
    """Scores of each map, and one product with the values."""
    return _products(q1, v, 1 if q2 is None else 2, 1, 1)


@register_flop_formula(torch.ops.diffattn.backward)
def _backward_flops(q1: Any, k1: Any, q2: Any, k2: Any, v: Any, *_: Any, **__: Any) -> int:
    """Of each map the scores once more and two gradients, and two products with the values' width."""
    return _products(q1, v, 1 if q2 is None else 2, 3, 2)


def _products(q: Any, v: Any, maps: int, of_maps: int, of_values: int) -> int:
    batch, heads, queries, width = q
    return 2 * batch * heads * queries * v[2] * (of_maps * maps * width + of_values * v[3])
