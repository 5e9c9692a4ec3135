"""The operators on torch's own scaled_dot_product_attention.

B batch, T queries, S keys, H output heads, G key/value groups, D query/key width, E value width.

Each map is one call. Where V is wider than Q and K (version 1: E = 2D), Q and K are padded with zeros to V's width,
which changes no logit: on a CPU torch's fused kernel wants equal widths and otherwise silently holds whole maps, and
padding beats two calls on half of V because each softmax is taken once (benchmarks/sdpa_plans.py). Both maps in one
stacked call gain nothing there. A scale of 0 or below is put into the queries, because that kernel multiplies the
minus infinity of a causally hidden key by it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffattn.ops.call import Call
from diffattn.ops.masks import Mask, additive, build_mask
from diffattn.ops.reference import compute_dtype

FUSES_NORM = False

FULL_VECTOR = 16
"""Keys that fill a vector register of any CPU (AVX-512 in float32). With fewer and no mask, torch's fused CPU kernel
takes a row of NaN logits for a row without keys and gives 0; with a mask it keeps the NaN."""


def unavailable() -> str | None:
    """It runs everywhere."""
    return None


def refuses(call: Call) -> str | None:
    """It serves every call."""
    return None


def run(call: Call) -> Tensor:
    """A v, or A1 v - lam A2 v, [B, H, T, E]; two maps in float32 or float64, one in the queries' dtype."""
    q, k, v = call.queries[0], call.keys[0], call.v
    square = call.given.only_causal() and q.shape[2] == k.shape[2]
    dtype = compute_dtype(q.dtype)
    # The plain causal rule over as many queries as keys is built into torch's kernels and needs no mask.
    mask = Mask(None, None) if square else build_mask(call.given, q.shape[2], k.shape[2], q.device, dtype)
    queries, scale = call.queries, call.scale
    if scale <= 0:
        queries, scale = tuple(x * scale for x in queries), 1.0
    if call.maps == 2:
        (q1, q2), (k1, k2) = queries, call.keys
        q1, k1, q2, k2, values = _padded((q1, k1, q2, k2, v), _kernel_width(q, v))
        first = _attend(q1, k1, values, mask.values, square, scale)
        second = _attend(q2, k2, values, mask.values, square, scale)
        out = first.to(dtype) - call.lam * second.to(dtype)
    elif call.sink is None:
        q, k, values = _padded((queries[0], k, v), _kernel_width(q, v))
        out = _attend(q, k, values, mask.values, square, scale)
    else:
        q, k, values, logits = _with_sink(queries[0], k, v, mask.values, square, scale, call.sink)
        q, k, values = _padded((q, k, values), _kernel_width(q, values))
        out = _attend(q, k, values, logits, square, 1.0)
        out = out[:, :, 1:] if square else out
    return _finished(out, v.shape[-1], mask)


def _finished(out: Tensor, width: int, mask: Mask) -> Tensor:
    # A slice of everything would still cost a copy in the backward pass.
    out = out if out.shape[-1] == width else out[..., :width]
    return out if mask.empty is None else out.masked_fill(mask.empty, 0.0)


def _kernel_width(q: Tensor, v: Tensor) -> int | None:
    """The width that Q, K and V are padded to; None for a single query, which does not pay for a padded cache."""
    return None if q.shape[2] == 1 else max(q.shape[-1], v.shape[-1])


def _padded(tensors: tuple[Tensor, ...], width: int | None) -> list[Tensor]:
    """Zero channels up to `width`; a tensor that occurs twice (k2 is k1) is padded once."""
    if width is None:
        return list(tensors)
    done: dict[int, Tensor] = {}
    for x in tensors:
        if id(x) not in done:
            done[id(x)] = x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))
    return [done[id(x)] for x in tensors]


def _with_sink(
    q: Tensor, k: Tensor, v: Tensor, values: Tensor | None, square_causal: bool, scale: float, sink: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """One more key in front, of logit sink_h and value 0; its logit travels in one more channel of the queries.

    The scale moves into the queries. Under the causal rule one more query in front keeps the call square.
    """
    dtype = compute_dtype(q.dtype)
    # Minus infinity (no sink) would meet the 0 of the other keys; for a softmax this is as good.
    logit = sink.to(dtype).clamp(min=-1e30)[:, None, None].expand(*q.shape[:-1], 1)
    q = torch.cat((q.to(dtype) * scale, logit), -1)
    key = torch.zeros(k.shape[-1] + 1, dtype=dtype, device=k.device)
    key[-1] = 1.0
    k = torch.cat((key.expand(*k.shape[:2], 1, -1), F.pad(k.to(dtype), (0, 1))), 2)
    v = F.pad(v.to(dtype), (0, 0, 1, 0))
    if square_causal:
        q = F.pad(q, (0, 0, 1, 0))
    if values is not None:
        values = values.expand(*values.shape[:-1], k.shape[2] - 1)
        values = F.pad(values, (1, 0), value=True if values.dtype == torch.bool else 0.0)
    return q, k, v, values


def _attend(q: Tensor, k: Tensor, v: Tensor, values: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """torch's attention; the result has q's dtype, or float32 where a float mask asks for it."""
    heads, groups, width = q.shape[1], k.shape[1], q.shape[-1]
    if values is None and q.device.type == "cpu" and 0 < k.shape[2] < FULL_VECTOR:
        values = torch.ones(q.shape[2] if is_causal else 1, k.shape[2], dtype=torch.bool, device=q.device)
        values, is_causal = (values.tril() if is_causal else values)[None, None], False
    if q.shape[2] == 1 and v.shape[-1] > width:
        # Pieces of V of the kernel's width are views; padding or torch's unfused path would copy a whole cache.
        pieces = [_attend(q, k, piece, values, is_causal, scale) for piece in v.split(width, -1)]
        return torch.cat(pieces, -1)
    if values is not None and values.dtype != torch.bool and values.dtype != q.dtype:
        # torch wants mask and queries of one dtype, and a bias in bfloat16 would be wrong by whole logits.
        q, k, v = q.to(values.dtype), k.to(values.dtype), v.to(values.dtype)
    if q.shape[2] == 1 and heads != groups:
        # The heads of a group become rows of one product: a cache is read once for all of them (with two groups of
        # four heads and 4096 keys on one core of a Zen 3: 0.35 ms against 0.65).
        if values is not None and values.shape[1] == heads:
            values = values.unflatten(1, (groups, -1)).squeeze(3)
        return _attend(q.unflatten(1, (groups, -1)).squeeze(3), k, v, values, False, scale).flatten(1, 2)[:, :, None]
    if _fused_on_cpu(q, k, v, values):
        bias = None if values is None else additive(values, q.dtype)
        return _FusedOnCpu.apply(q, k, v, bias, is_causal, scale)[0]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=values, is_causal=is_causal, scale=scale, enable_gqa=heads != groups
    )


def _fused_on_cpu(q: Tensor, k: Tensor, v: Tensor, values: Tensor | None) -> bool:
    """Whether torch would take its fused CPU kernel, which it cannot differentiate twice by itself.

    A compiled graph is differentiated once, so there torch's own call serves.
    """
    return (
        q.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and q.shape[-1] == v.shape[-1]
        and all(x.stride(-1) == 1 and x.numel() for x in (q, k, v))
        and not (values is not None and values.requires_grad)
    )


class _FusedOnCpu(torch.autograd.Function):
    """torch's fused CPU kernel with a second derivative, taken through the unfused formula."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(q, k, v, 0.0, is_causal, attn_mask=bias, scale=scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, bias, ctx.is_causal, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(q, k, v, bias, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, normalisers = ctx.saved_tensors
        options = {"attn_mask": bias, "scale": ctx.scale}
        if not torch.is_grad_enabled():
            kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
            return *kernel(grads[0], q, k, v, out, normalisers, 0.0, ctx.is_causal, **options), None, None, None
        wanted = [x for x in (q, k, v) if x.requires_grad]
        with sdpa_kernel(SDPBackend.MATH):
            again = F.scaled_dot_product_attention(
                q, k, v, is_causal=ctx.is_causal, enable_gqa=q.shape[1] != k.shape[1], **options
            )
        found = iter(torch.autograd.grad(again, wanted, grads[0], create_graph=True))
        return *(next(found) if x.requires_grad else None for x in (q, k, v)), None, None, None
