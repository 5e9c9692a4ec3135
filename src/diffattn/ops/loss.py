"""Cross-entropy of a language model's head, chunked over the vocabulary: logits of tokens x vocabulary are never held.

N tokens, W width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# On one core of a Zen 3, 512 columns beat one product over 2048 to 32768, because a chunk stays in cache. An
# accelerator wants larger products; its size is not measured.
CPU_COLUMNS, GPU_COLUMNS = 512, 8192


def head_products(vocabulary: int) -> int:
    """Matrix products with the head in a training step on a CPU: several chunks compute their logits twice."""
    return 3 if vocabulary <= CPU_COLUMNS else 4


def token_losses(
    hidden: Tensor, head: Tensor, targets: Tensor, ignore_index: int = -100, chunk: int | None = None
) -> Tensor:
    """Cross-entropy of each token in nats, 0 where the target is `ignore_index`.

    hidden [..., W] and head [V, W] of one floating dtype; targets [...] integers; returns [...] in float32 (float64
    for float64 inputs). Logits are computed `chunk` columns at a time, in the inputs' dtype (autocast's where that is
    on); statistics are float32. Memory is N x chunk. Differentiable once, in hidden and head. ValueError: shapes or
    dtypes that do not fit; on a CPU also a target outside 0 .. V - 1 (on a GPU, where looking would wait for it, such
    a token's loss is NaN).
    """
    _check(hidden, head, targets, ignore_index, chunk)
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        hidden, head = hidden.to(torch.get_autocast_dtype(device)), head.to(torch.get_autocast_dtype(device))
    columns = chunk or (CPU_COLUMNS if device == "cpu" else GPU_COLUMNS)
    rows, wanted = hidden.flatten(0, -2), targets.flatten()
    with torch.autocast(device, enabled=False):
        if head.shape[0] <= columns and device == "cpu":
            # One chunk anyway: torch's own cross-entropy does not compute the logits twice (9 against 13 ms at
            # N = 2048, V = 256, W = 96).
            logits = F.linear(rows, head).to(_statistics_dtype(rows.dtype))
            losses = F.cross_entropy(logits, wanted.long(), ignore_index=ignore_index, reduction="none")
        else:
            losses = _ChunkedLoss.apply(rows, head, wanted, ignore_index, columns)
    return losses.view(targets.shape)


def cross_entropy(
    hidden: Tensor, head: Tensor, targets: Tensor, ignore_index: int = -100, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sum of `token_losses` (float32, differentiable) and the number of scored tokens (int64), both without dimension.

    To be divided once, by the count over all ranks and accumulation steps.
    """
    losses = token_losses(hidden, head, targets, ignore_index, chunk)
    return losses.sum(), (targets != ignore_index).sum()


class _ChunkedLoss(torch.autograd.Function):
    """hidden [N, W], head [V, W], targets [N] -> [N]: an online log-sum-exp; backward computes the logits again."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, ignore_index: int, chunk: int) -> Tensor:
        dtype = _statistics_dtype(hidden.dtype)
        top = torch.full(targets.shape, -torch.inf, dtype=dtype, device=hidden.device)
        total = torch.zeros_like(top)
        # A target that is in no chunk leaves its NaN.
        at_target = torch.full_like(top, torch.nan)
        for start, weights in _chunks(head, chunk):
            logits = F.linear(hidden, weights).to(dtype)
            column, here = _inside(targets, start, logits.shape[1])
            at_target = torch.where(here, logits.gather(1, column)[:, 0], at_target)
            higher = torch.maximum(top, logits.amax(1))
            total = total * (top - higher).exp() + (logits - higher[:, None]).exp_().sum(1)
            top = higher
        normaliser = top + total.log()
        scored = targets != ignore_index
        ctx.save_for_backward(hidden, head, targets, normaliser, scored)
        ctx.chunk = chunk
        return torch.where(scored, normaliser - at_target, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, head, targets, normaliser, scored = ctx.saved_tensors
        grad = torch.where(scored, grads[0], 0.0)
        to_hidden = torch.zeros(hidden.shape, dtype=normaliser.dtype, device=hidden.device)
        to_head = torch.empty_like(head)
        for start, weights in _chunks(head, ctx.chunk):
            logits = F.linear(hidden, weights).to(normaliser.dtype)
            to_logits = (logits - normaliser[:, None]).exp_().mul_(grad[:, None])
            column, here = _inside(targets, start, logits.shape[1])
            to_logits.scatter_add_(1, column, torch.where(here, -grad, 0.0)[:, None])
            to_logits = to_logits.to(hidden.dtype)
            to_hidden += to_logits @ weights
            to_head[start : start + len(weights)] = to_logits.T @ hidden
        return to_hidden.to(hidden.dtype), to_head, None, None, None


def _chunks(head: Tensor, chunk: int) -> list[tuple[int, Tensor]]:
    return [(start, head[start : start + chunk]) for start in range(0, head.shape[0], chunk)]


def _inside(targets: Tensor, start: int, columns: int) -> tuple[Tensor, Tensor]:
    """Column of each target within a chunk, [N, 1] (any column where it is elsewhere), and whether it is here, [N]."""
    column = targets.long() - start
    return column.clamp(0, columns - 1)[:, None], (column >= 0) & (column < columns)


def _statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _check(hidden: Tensor, head: Tensor, targets: Tensor, ignore_index: int, chunk: int | None) -> None:
    if not hidden.is_floating_point() or head.dtype != hidden.dtype:
        raise ValueError(f"head: got {head.dtype} with hidden of {hidden.dtype}, needs one floating dtype for both")
    if head.dim() != 2 or hidden.dim() < 2 or hidden.shape[-1] != head.shape[1] or not head.shape[0]:
        raise ValueError(f"head: got {list(head.shape)} for hidden {list(hidden.shape)}, needs [vocabulary, width]")
    if targets.dtype not in (torch.int32, torch.int64) or targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"targets: got {list(targets.shape)} of {targets.dtype}, needs integers {list(hidden.shape[:-1])}"
        )
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk: got {chunk}, needs at least one column of the vocabulary, or None")
    if targets.device.type == "cpu" and not torch.compiler.is_compiling():
        outside = (targets != ignore_index) & ((targets < 0) | (targets >= head.shape[0]))
        if outside.any():
            worst, last = int(targets[outside][0]), head.shape[0] - 1
            raise ValueError(f"targets: got {worst}, needs 0 to {last}, or {ignore_index} for tokens not scored")
