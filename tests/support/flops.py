"""Counting FLOPs of a forward and a backward pass, the CPU's fused attention included."""

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def _forward(q: torch.Size, k: torch.Size, v: torch.Size, *_: object, **__: object) -> int:
    return sdpa_flop_count(q, k, v)


def _backward(grad: torch.Size, q: torch.Size, k: torch.Size, v: torch.Size, *_: object, **__: object) -> int:
    return sdpa_backward_flop_count(grad, q, k, v)


# torch counts its fused attention on GPUs only; the CPU's kernel is counted here by torch's own rule.
_FUSED_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
}


def counted_flops(work: Callable[[], torch.Tensor]) -> int:
    """FLOPs of the matrix products in `work` and in the backward pass of its sum."""
    with FlopCounterMode(display=False, custom_mapping=_FUSED_ON_CPU) as counter:
        work().sum().backward()
    return counter.get_total_flops()
