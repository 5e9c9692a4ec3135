"""The fused kernel for CPUs, in C++: linear memory, every argument of the operators, the norm as its epilogue.

float32 and bfloat16, on Linux and x86-64; `kernel.h` is the interface, `library.py` finds the compiled kernel.
"""

import torch
from torch import Tensor

from diffattn.ops.call import Call, transformed
from diffattn.ops.cpu import library, operators
from diffattn.ops.cpu.arguments import Arguments

FUSES_NORM = True


def unavailable() -> str | None:
    """Why there is no kernel for this machine, and how to get it."""
    return library.UNAVAILABLE


def refuses(call: Call) -> str | None:
    """The dtypes, widths and gradients that the kernel does not have."""
    q, v = call.queries[0], call.v
    if q.device.type != "cpu":
        return f"the tensors are on {q.device}, and it runs on the CPU"
    if q.dtype not in (torch.float32, torch.bfloat16):
        return f"it computes in float32 and bfloat16, not in {str(q.dtype).removeprefix('torch.')}"
    if not (16 <= q.shape[-1] <= 256 and q.shape[-1] % 8 == 0):
        return f"queries have width {q.shape[-1]}, and it takes 16 to 256 in steps of 8"
    if not (8 <= v.shape[-1] <= 512 and v.shape[-1] % 8 == 0):
        return f"values have width {v.shape[-1]}, and it takes 8 to 512 in steps of 8"
    if transformed():
        return "torch.func and forward-mode differentiation need impl='reference'"
    for name, x in (("attn_mask", call.given.attn_mask), ("alibi", call.given.alibi)):
        if x is not None and x.requires_grad:
            return f"{name} requires grad, which impl='reference' and impl='sdpa' can give"
    return None


def run(call: Call) -> Tensor:
    """The result with the norm, [B, H, T, E], in the queries' dtype."""
    given = _arguments(call)
    if torch.is_grad_enabled() and any(x.requires_grad for x in given if isinstance(x, Tensor)):
        forward = operators.forward if torch.compiler.is_compiling() else operators.Eager.apply
        return forward(*given)[0]
    return operators.inference(*given)


def _arguments(call: Call) -> Arguments:
    q2 = k2 = lam = None
    if call.maps == 2:
        q2 = call.queries[1]
        k2 = None if call.keys[1] is call.keys[0] else call.keys[1]
        lam = call.lam if isinstance(call.lam, Tensor) else torch.tensor(float(call.lam), dtype=torch.float32)
    given, norm, mask = call.given, call.norm, call.given.attn_mask
    return Arguments(
        q1=call.queries[0],
        k1=call.keys[0],
        q2=q2,
        k2=k2,
        v=call.v,
        lam=lam,
        sink=_float32(call.sink),
        weight=None if norm is None else _float32(norm.weight),
        mask=mask if mask is None or mask.dtype == torch.bool else _float32(mask),
        documents=given.documents,
        lengths=given.key_lengths,
        alibi=_float32(given.alibi),
        is_causal=given.is_causal,
        window=given.window or 0,
        scale=call.scale,
        eps=None if norm is None else norm.eps,
        gain=1.0 if norm is None else norm.gain,
    )


def _float32(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.to(torch.float32)
