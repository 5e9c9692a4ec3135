"""The kernels as operators of torch.library, so that torch.compile traces them without looking inside.

`forward` has a gradient; `infer` has none, and saves nothing. Letters as in `diffattn.ops`; without q2 it is ordinary
attention, without k2 both maps share k1; lam is [B, H, T, 1] and the mask [B, H, T, S], both of any strides.
"""

from typing import Any

import torch
from torch import Tensor

from diffattn.ops.call import Call
from diffattn.ops.triton import launch
from diffattn.ops.triton.launch import LOG2E, Problem
from diffattn.ops.triton.visible import restrictions

FEW_QUERIES = 16
"""Up to here a program for each block of queries would leave most of a GPU idle: the keys are split instead."""


def run(call: Call) -> Tensor:
    """The result of a call that is not refused, [B, H, T, E], in the queries' dtype."""
    (batch, heads, queries, _), keys = call.queries[0].shape, call.keys[0].shape[2]
    two = call.maps == 2
    lam, given = None, call.given
    if two:
        lam = call.lam if isinstance(call.lam, Tensor) else call.v.new_full((), call.lam, dtype=torch.float32)
        lam = lam.expand(batch, heads, queries, 1)
    arguments = (
        call.queries[0],
        call.keys[0],
        call.queries[1] if two else None,
        call.keys[1] if two and call.keys[1] is not call.keys[0] else None,
        call.v,
        lam,
        None if call.sink is None else call.sink.float(),
        None if given.attn_mask is None else given.attn_mask.expand(batch, heads, queries, keys),
        given.documents,
        given.key_lengths,
        None if given.alibi is None else given.alibi.float(),
        given.is_causal,
        given.window,
        call.scale,
    )
    differentiable = any(isinstance(x, Tensor) and x.requires_grad for x in arguments)
    if torch.is_grad_enabled() and differentiable:
        return forward(*arguments)[0]
    return infer(*arguments)


@torch.library.custom_op("diffattn_triton::infer", mutates_args=())
def infer(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | None,
    sink: Tensor | None,
    mask: Tensor | None,
    documents: Tensor | None,
    key_lengths: Tensor | None,
    alibi: Tensor | None,
    is_causal: bool,
    window: int | None,
    scale: float,
) -> Tensor:
    """The result, [B, H, T, E]."""
    rules = restrictions(mask, window, documents, key_lengths, alibi)
    problem = Problem(q1, k1, q2, k2, v, lam, sink, rules, is_causal, scale)
    return launch.decode(problem) if q1.shape[2] <= FEW_QUERIES else launch.forward(problem, save=False)[0]


@infer.register_fake
def _(q1: Tensor, k1: Tensor, q2: Tensor | None, k2: Tensor | None, v: Tensor, *_: Any) -> Tensor:
    return launch.rows_first(q1, q1.shape[1], q1.shape[2], v.shape[3])


@torch.library.custom_op("diffattn_triton::forward", mutates_args=())
def forward(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | None,
    sink: Tensor | None,
    mask: Tensor | None,
    documents: Tensor | None,
    key_lengths: Tensor | None,
    alibi: Tensor | None,
    is_causal: bool,
    window: int | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The result, A1 v and A2 v (of two maps, else empty), and each row's maximum and log-sum, [M, B, H, T]."""
    rules = restrictions(mask, window, documents, key_lengths, alibi)
    return launch.forward(Problem(q1, k1, q2, k2, v, lam, sink, rules, is_causal, scale), save=True)


@forward.register_fake
def _(q1: Tensor, k1: Tensor, q2: Tensor | None, k2: Tensor | None, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    out = launch.rows_first(q1, q1.shape[1], q1.shape[2], v.shape[3])
    reads = [out.new_empty(0) if q2 is None else torch.empty_like(out) for _ in range(2)]
    rows = q1.new_empty(1 if q2 is None else 2, *q1.shape[:3], dtype=torch.float32)
    return out, *reads, rows, torch.empty_like(rows)


@torch.library.custom_op("diffattn_triton::backward", mutates_args=())
def backward(
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    maximum: Tensor,
    log_sum: Tensor,
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | None,
    sink: Tensor | None,
    mask: Tensor | None,
    documents: Tensor | None,
    key_lengths: Tensor | None,
    alibi: Tensor | None,
    is_causal: bool,
    window: int | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q1, k1, q2, k2 (empty where not given) and v; `grad` times what each map read, [M, B, H, T]."""
    rules = restrictions(mask, window, documents, key_lengths, alibi)
    problem = Problem(q1, k1, q2, k2, v, lam, sink, rules, is_causal, scale)
    dq1, dk1, dq2, dk2, dv, inner = launch.backward(problem, grad, first, second, maximum, log_sum)
    return dq1, dk1, _or_empty(dq2, q1), _or_empty(dk2, q1), dv, inner


@backward.register_fake
def _(
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    maximum: Tensor,
    log_sum: Tensor,
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    *_: Any,
) -> tuple[Tensor, ...]:
    shapes = [None if x is None else launch.rows_first(x, *x.shape[1:]) for x in (q1, k1, q2, k2, v)]
    return *(_or_empty(x, q1) for x in shapes), torch.empty_like(maximum)


def _or_empty(x: Tensor | None, like: Tensor) -> Tensor:
    """Operators return tensors only."""
    return like.new_empty(0) if x is None else x


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.is_causal, ctx.window, ctx.scale = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *tensors)


def _differentiate(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    out, first, second, maximum, log_sum, *tensors = ctx.saved_tensors
    q2, k2, sink = tensors[2], tensors[3], tensors[6]
    if grad is None:
        return (None,) * 14
    if q2 is None:
        first = out
    if any(x is not None for x in tensors[7:10]) or tensors[0].shape[2] > tensors[1].shape[2]:
        # A row that attends nothing passes nothing on, whatever its gradient and its lam.
        empty = log_sum[0, ..., None] == torch.inf
        grad = grad.masked_fill(empty, 0.0)
        if tensors[5] is not None:
            tensors[5] = tensors[5].expand(empty.shape).masked_fill(empty, 0.0)
    dq1, dk1, dq2, dk2, dv, inner = backward(
        grad, first, second, maximum, log_sum, *tensors, ctx.is_causal, ctx.window, ctx.scale
    )
    dlam = None if q2 is None else -inner[1].unsqueeze(-1)
    dsink = None
    if sink is not None:
        # The sink's own weight; its value is 0, so that only the row's inner product is left of its gradient.
        weight = torch.exp2(sink[:, None] * LOG2E - maximum[0] - log_sum[0])
        dsink = -(weight * inner[0]).sum((0, 2))
    second_keys = None if k2 is None else dk2
    return dq1, dk1, None if q2 is None else dq2, second_keys, dv, dlam, dsink, *(None,) * 7


def _refuse(ctx: Any, *_: Any) -> tuple[None, ...]:
    raise RuntimeError(
        "impl='triton' has no second derivative; impl='reference' or impl='sdpa' can be differentiated twice"
    )


forward.register_autograd(_differentiate, setup_context=_keep)
backward.register_autograd(_refuse)
