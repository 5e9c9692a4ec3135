"""The attention operators: check the arguments, choose an implementation."""

from torch import Tensor

__all__ = ["attention", "attention_maps", "diff_attention", "diff_attention_maps", "implementations"]


def diff_attention(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    v: Tensor,
    lam: float | Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    documents: Tensor | None = None,
    key_lengths: Tensor | None = None,
    alibi: Tensor | None = None,
    impl: str = "auto",
) -> Tensor:
    """(A1 - lam * A2) v."""
    raise NotImplementedError


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    documents: Tensor | None = None,
    key_lengths: Tensor | None = None,
    alibi: Tensor | None = None,
    sink: Tensor | None = None,
    impl: str = "auto",
) -> Tensor:
    """A v."""
    raise NotImplementedError


def diff_attention_maps(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    documents: Tensor | None = None,
    key_lengths: Tensor | None = None,
    alibi: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A1 and A2, each [B, H, T, S]."""
    raise NotImplementedError


def attention_maps(
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    documents: Tensor | None = None,
    key_lengths: Tensor | None = None,
    alibi: Tensor | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """A, [B, H, T, S]."""
    raise NotImplementedError


def implementations() -> dict[str, str | None]:
    """Name of each implementation -> why it cannot run here (None: it can)."""
    return {"reference": None, "sdpa": None}
