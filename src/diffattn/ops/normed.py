"""The operators with the per-head RMSNorm and a gain behind them.

Layers call these in every case: an implementation that has the norm as its epilogue saves two passes over the result,
and behind the others `reference.normed` takes it. Letters as in `diffattn.ops`.
"""

from torch import Tensor

from diffattn.ops import dispatch
from diffattn.ops.call import Norm
from diffattn.ops.checks import FLOATS
from diffattn.ops.masks import Restrictions


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
    """gain * RMSNorm(diff_attention(...)) over the E channels of each head and token: arXiv 2410.05258, eq. 3.

    weight [E] or None (no learned scale); eps None: no norm, the gain alone. Returns [B, H, T, E] in q1's dtype; the
    norm's statistics are float32 (float64). Finite at rows of zeros (lam = 1 at the first
    position), forward and backward. The other arguments and errors are those of `diff_attention`.
    """
    _check_norm(weight, eps, gain, v)
    given = Restrictions(attn_mask, is_causal, window, documents, key_lengths, alibi)
    return dispatch.diff_attention(q1, k1, q2, k2, v, lam, given, scale, Norm(weight, eps, gain), impl)


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
    """gain * RMSNorm(attention(...)), as in `normed_diff_attention`."""
    _check_norm(weight, eps, gain, v)
    given = Restrictions(attn_mask, is_causal, window, documents, key_lengths, alibi)
    return dispatch.attention(q, k, v, given, scale, sink, Norm(weight, eps, gain), impl)


def _check_norm(weight: Tensor | None, eps: float | None, gain: float, v: Tensor) -> None:
    if isinstance(gain, bool) or not isinstance(gain, (int, float)):
        raise ValueError(f"gain: got {type(gain).__name__}, needs a number")
    if eps is not None and not eps > 0:
        raise ValueError(f"eps: got {eps}, needs a positive number (rows of zeros divide by its root), or None")
    if weight is None:
        return
    if eps is None:
        raise ValueError("weight: got a tensor with eps=None, needs None: without a norm there is nothing to scale")
    if weight.device != v.device:
        raise ValueError(f"weight: got device {weight.device}, needs {v.device} like v")
    if weight.dtype not in FLOATS or list(weight.shape) != [v.shape[-1]]:
        raise ValueError(
            f"weight: got {list(weight.shape)} of {weight.dtype}, needs floating [{v.shape[-1]}], one per value channel"
        )
