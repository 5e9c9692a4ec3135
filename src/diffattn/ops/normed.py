"""The operators with the per-head RMSNorm and a gain behind them."""

from torch import Tensor


def normed_diff_attention(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    v: Tensor,
    lam: float | Tensor,
    weight: Tensor | None,
    eps: float | None,
    gain: float,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    documents: Tensor | None = None,
    key_lengths: Tensor | None = None,
    alibi: Tensor | None = None,
    impl: str = "auto",
) -> Tensor:
    """gain * RMSNorm(diff_attention(...))."""
    raise NotImplementedError


def normed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weight: Tensor | None,
    eps: float | None,
    gain: float,
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
    """gain * RMSNorm(attention(...))."""
    raise NotImplementedError
