"""Arguments of the operators: each wrong one is a ValueError with its name, what it got, what it needs."""

import math

import torch
from torch import Tensor

from diffattn.ops.masks import Restrictions

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int32, torch.int64)


def check_operands(queries: dict[str, Tensor], keys: dict[str, Tensor], v: Tensor | None) -> None:
    """Shapes, dtypes and devices of queries [B, H, T, D], keys [B, G, S, D] and the value [B, G, S, E]."""
    named = {**queries, **keys} if v is None else {**queries, **keys, "v": v}
    (lead, q), (key_name, k) = next(iter(queries.items())), next(iter(keys.items()))
    for name, x in named.items():
        if not isinstance(x, Tensor) or x.dim() != 4:
            got = f"shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{name}: got {got}, needs a tensor of 4 dimensions [batch, heads, length, width]")
        if x.dtype not in FLOATS:
            raise ValueError(f"{name}: got dtype {x.dtype}, needs float16, bfloat16, float32 or float64")
        if x.dtype != q.dtype:
            raise ValueError(f"{name}: got dtype {x.dtype}, needs {q.dtype} like {lead}")
        _check_device(name, x, lead, q.device)
    batch, heads, _, width = q.shape
    for name, x in queries.items():
        _check_shape(name, x, list(q.shape), f"like {lead}")
    groups, length = k.shape[1], k.shape[2]
    if width < 1:
        raise ValueError(f"{lead}: got width 0, needs at least one channel")
    for name, x in keys.items():
        _check_shape(name, x, [batch, groups, length, width], f"batch and width of {lead}, the rest of {key_name}")
    if groups < 1 or heads < 1 or heads % groups:
        raise ValueError(
            f"{key_name}: got {groups} key/value heads for {heads} query heads in {lead}, needs a divisor of {heads}"
        )
    if v is not None and (list(v.shape[:3]) != [batch, groups, length] or v.shape[3] < 1):
        raise ValueError(
            f"v: got shape {list(v.shape)}, needs [{batch}, {groups}, {length}, any width] like {key_name}"
        )


def check_lam(lam: float | Tensor, q: Tensor) -> None:
    """A number, or a floating tensor broadcastable to [B, H, T, 1]."""
    if isinstance(lam, Tensor):
        if lam.dtype not in FLOATS:
            raise ValueError(f"lam: got dtype {lam.dtype}, needs a floating dtype")
        _check_device("lam", lam, "q1", q.device)
        _check_broadcast("lam", lam, [*q.shape[:3], 1], "[batch, heads, queries, 1]")
    elif isinstance(lam, bool) or not isinstance(lam, (int, float)):
        raise ValueError(f"lam: got {type(lam).__name__}, needs a number or a tensor")


def check_scale(scale: float | None) -> None:
    """None or a finite number."""
    if scale is None:
        return
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise ValueError(f"scale: got {scale!r}, needs a finite number, or None for 1 / sqrt(width of the queries)")


def check_restrictions(given: Restrictions, q: Tensor, keys: int) -> None:
    """Everything that says who attends to whom, for queries [B, H, T, D] and `keys` = S."""
    batch, heads, queries, _ = q.shape
    mask = given.attn_mask
    if mask is not None:
        if not isinstance(mask, Tensor) or (mask.dtype != torch.bool and mask.dtype not in FLOATS):
            got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"attn_mask: got {got}, needs a bool tensor (True = may attend) or a floating one (added)")
        _check_device("attn_mask", mask, "the queries", q.device)
        needed = "[batch, output heads, queries, keys]; one mask serves both maps"
        _check_broadcast("attn_mask", mask, [batch, heads, queries, keys], needed)
    _check_window(given)
    if given.documents is not None:
        _check_integers("documents", given.documents, [batch, keys], "one id per key", q.device)
        if keys < queries:
            raise ValueError(
                f"documents: got {keys} keys for {queries} queries, needs at least as many keys as queries, "
                "because the queries are the last keys"
            )
    lengths = given.key_lengths
    if lengths is not None:
        _check_integers("key_lengths", lengths, [batch], "one length per batch row", q.device)
        # Reading values would wait for a GPU, and cannot be compiled.
        if lengths.device.type == "cpu" and not torch.compiler.is_compiling() and lengths.numel():
            low, high = int(lengths.min()), int(lengths.max())
            if low < 0 or high > keys:
                raise ValueError(
                    f"key_lengths: got values from {low} to {high}, needs 0 to {keys} (the number of keys)"
                )
    if given.alibi is not None:
        check_per_head("alibi", given.alibi, heads, q.device)


def check_per_head(name: str, x: Tensor, heads: int, device: torch.device) -> None:
    """A floating tensor [H]."""
    if not isinstance(x, Tensor) or x.dtype not in FLOATS:
        raise ValueError(
            f"{name}: got {x.dtype if isinstance(x, Tensor) else type(x).__name__}, needs a floating tensor"
        )
    _check_device(name, x, "the queries", device)
    _check_shape(name, x, [heads], "one number per output head")


def _check_window(given: Restrictions) -> None:
    window = given.window
    if window is None:
        return
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ValueError(f"window: got {window!r}, needs a whole number of keys, at least 1 (the query's own position)")
    if not given.is_causal:
        raise ValueError(f"window: got {window} with is_causal=False, needs is_causal=True")


def _check_integers(name: str, x: Tensor, shape: list[int], meaning: str, device: torch.device) -> None:
    if not isinstance(x, Tensor) or x.dtype not in INTEGERS:
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{name}: got {got}, needs a tensor of int32 or int64")
    _check_device(name, x, "the queries", device)
    _check_shape(name, x, shape, meaning)


def _check_device(name: str, x: Tensor, lead: str, device: torch.device) -> None:
    if x.device != device:
        raise ValueError(f"{name}: got device {x.device}, needs {device} like {lead}")


def _check_shape(name: str, x: Tensor, shape: list[int], why: str) -> None:
    if list(x.shape) != shape:
        raise ValueError(f"{name}: got shape {list(x.shape)}, needs {shape} ({why})")


def _check_broadcast(name: str, x: Tensor, shape: list[int], meaning: str) -> None:
    sizes = list(x.shape)
    if len(sizes) > len(shape) or any(a not in (1, b) for a, b in zip(reversed(sizes), reversed(shape), strict=False)):
        raise ValueError(f"{name}: got shape {sizes}, needs one that broadcasts to {shape} = {meaning}")
