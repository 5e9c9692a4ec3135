"""Fused kernels for NVIDIA GPUs, in Triton: memory O(T), every argument of the operators, 16 and 32 bits.

`forward.py` and `combined.py` hold the forward pass, `gradient_keys.py` and `gradient_queries.py` the backward pass,
`decode.py` few queries on many keys; `visible.py` the restrictions, `tiles.py` what all kernels share, `blocks.py` the
block sizes, `launch.py` allocation and grids, `operators.py` the operators that torch sees. Each kernel's page explains
its blocking. Triton itself is imported by `language.py` alone, when the first call is served.

Under TRITON_INTERPRET=1, set before Triton is first imported, the kernels run on a CPU, very slowly: for tests.
"""

import importlib.util
import os

import torch
from torch import Tensor

from diffattn.ops.call import Call, transformed

FUSES_NORM = False
MAX_WIDTH, MAX_VALUE_WIDTH = 256, 512


def _installed() -> bool:
    try:
        return importlib.util.find_spec("triton") is not None
    except ImportError:
        return False


# Read once: torch.compile could not look these up in the middle of a graph.
_INSTALLED = _installed()
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


def unavailable() -> str | None:
    """Triton and a CUDA device are needed, or Triton's interpreter."""
    if not _INSTALLED:
        return "the package triton is not installed (pip install triton; Linux on x86-64 or arm64)"
    if not _INTERPRETED and not torch.cuda.is_available():
        return "no CUDA device"
    return None


def refuses(call: Call) -> str | None:
    """Wide heads, float64, tensors elsewhere, and gradients of masks."""
    if transformed():
        return "torch.func and forward-mode differentiation need impl='reference'"
    q, given = call.queries[0], call.given
    if q.device.type != "cuda" and not _INTERPRETED:
        return f"the tensors are on {q.device}, it needs a CUDA device"
    if q.dtype == torch.float64:
        return "it computes in float32: impl='reference', 'sdpa' or 'blocked' serve float64"
    if q.dtype == torch.bfloat16 and _INTERPRETED:
        return "Triton's interpreter multiplies bfloat16 wrongly; use float16 or float32 there"
    if q.device.type == "cuda" and torch.cuda.get_device_capability(q.device) < (8, 0):
        return "the GPU is older than compute capability 8.0 (Ampere)"
    if q.shape[-1] > MAX_WIDTH or call.v.shape[-1] > MAX_VALUE_WIDTH:
        return (
            f"the widths are {q.shape[-1]} (queries, keys) and {call.v.shape[-1]} (values), "
            f"it goes to {MAX_WIDTH} and {MAX_VALUE_WIDTH}"
        )
    if given.attn_mask is not None and given.attn_mask.requires_grad:
        return "attn_mask requires a gradient; impl='reference' and 'sdpa' give it"
    if given.alibi is not None and given.alibi.requires_grad:
        return "alibi requires a gradient; impl='reference' and 'sdpa' give it"
    return None


def run(call: Call) -> Tensor:
    """A v, or (A1 - lam A2) v, [B, H, T, E], in the queries' dtype."""
    from diffattn.ops.triton import operators

    return operators.run(call)
