"""Attention as a loop over single numbers: slow, and sharing no code with the operators."""

import math
from typing import Any

import numpy as np


def slow_map(
    q: np.ndarray,
    k: np.ndarray,
    *,
    scale: float | None = None,
    attn_mask: np.ndarray | None = None,
    is_causal: bool = False,
    window: int | None = None,
    documents: np.ndarray | None = None,
    key_lengths: np.ndarray | None = None,
    alibi: np.ndarray | None = None,
    sink: np.ndarray | None = None,
) -> np.ndarray:
    """One softmax map [B, H, T, S] of q [B, H, T, D] and k [B, G, S, D]; rows with nothing to attend are 0."""
    batch, heads, queries, width = q.shape
    keys = k.shape[2]
    factor = 1 / math.sqrt(width) if scale is None else scale
    mask = None if attn_mask is None else np.broadcast_to(attn_mask, (batch, heads, queries, keys))
    found = np.zeros((batch, heads, queries, keys))
    for b, h, t in np.ndindex(batch, heads, queries):
        end = keys if key_lengths is None else int(key_lengths[b])
        position = end - queries + t
        logits: dict[int, float] = {}
        for s in range(end):
            if is_causal and s > position:
                continue
            if window is not None and s < position - window + 1:
                continue
            if documents is not None:
                own = documents[b, position] if position >= 0 else -1
                if own < 0 or documents[b, s] != own:
                    continue
            logit = factor * float(np.dot(q[b, h, t], k[b, h // (heads // k.shape[1]), s]))
            if mask is not None and mask.dtype == bool and not mask[b, h, t, s]:
                continue
            if mask is not None and mask.dtype != bool:
                if mask[b, h, t, s] == -np.inf:
                    continue
                logit += float(mask[b, h, t, s])
            if alibi is not None:
                logit -= float(alibi[h]) * abs(s - position)
            logits[s] = logit
        if not logits:
            continue
        extra = [] if sink is None else [float(sink[h])]
        top = max([*logits.values(), *extra])
        total = sum(math.exp(x - top) for x in [*logits.values(), *extra])
        for s, logit in logits.items():
            found[b, h, t, s] = math.exp(logit - top) / total
    return found


def slow_read(weights: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Weights [B, H, T, S] times v [B, G, S, E], head by head -> [B, H, T, E]."""
    share = weights.shape[1] // v.shape[1]
    return np.stack([weights[:, h] @ v[:, h // share] for h in range(weights.shape[1])], 1)


def as_numpy(arguments: dict[str, Any]) -> dict[str, Any]:
    """Tensors among keyword arguments as numpy arrays, the rest as it is."""
    return {name: x.detach().numpy() if hasattr(x, "detach") else x for name, x in arguments.items()}
