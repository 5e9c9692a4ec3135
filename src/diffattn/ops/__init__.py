"""The attention operators on tensors: no modules, no configs, no files.

B batch, T queries, S keys, H output heads, G key/value groups (H % G == 0), D width of a query or key head, E width of
a value head. Output head h reads group h // (H / G) in every map: the caller pairs heads, the operator never guesses.
"""

from torch import Tensor

from diffattn.ops import dispatch
from diffattn.ops.masks import Restrictions

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
    """(A1 - lam A2) v with A = softmax(scale q k^T + mask): differential attention, arXiv 2410.05258, eq. 1.

    q1, q2 [B, H, T, D]; k1, k2 [B, G, S, D] (k2 may be k1: version 2); v [B, G, S, E]; lam a number or a tensor
    broadcastable to [B, H, T, 1]. Returns [B, H, T, E] in q1's dtype; softmax statistics and lam are float32, or
    float64 for float64 inputs. Differentiable in q1, k1, q2, k2, v and lam; "reference" and "sdpa" also in a float mask
    and a second time. Inputs whose last axis is contiguous are not copied for their strides.

    All restrictions combine, and hold for both maps. A row that may attend nothing is exactly 0, its gradients too.

    - attn_mask: bool (True = may attend) or float (added), broadcastable to [B, H, T, S].
    - is_causal: query t sees keys s <= t + S - T (aligned at the bottom right, unlike torch's own flag).
    - scale: 1 / sqrt(D) if None.
    - window: only the last `window` keys, the query's own position included; needs is_causal.
    - documents [B, S]: ids of the keys, S >= T, the queries being the last T: nothing crosses ids; an id below 0 is
      padding, which attends nothing and is attended by nothing.
    - key_lengths [B]: keys from this index on do not exist; it replaces S wherever queries are aligned with keys.
    - alibi [H]: adds -slope times the distance between query and key (arXiv 2108.12409).
    - impl: "auto", or a name of `implementations()`.

    Raises ValueError for a wrong shape, dtype, device, head count or value, naming the argument.
    """
    given = Restrictions(attn_mask, is_causal, window, documents, key_lengths, alibi)
    return dispatch.diff_attention(q1, k1, q2, k2, v, lam, given, scale, None, impl)


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
    """A v: ordinary attention on the same code, with the restrictions of `diff_attention`.

    q [B, H, T, D]; k [B, G, S, D]; v [B, G, S, E]; returns [B, H, T, E] in q's dtype. sink [H]: a logit per head that
    takes weight in the softmax and adds nothing to the result, exp(S) / (exp(sink) + sum exp(S)).
    """
    given = Restrictions(attn_mask, is_causal, window, documents, key_lengths, alibi)
    return dispatch.attention(q, k, v, given, scale, sink, None, impl)


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
    """A1 and A2 of `diff_attention`, each [B, H, T, S], in float32 (float64 for float64 inputs).

    Memory is O(T * S) for each of B x H maps: for looking at short sequences, not for training. Rows with nothing to
    attend are 0. Restrictions and errors as in `diff_attention`.
    """
    given = Restrictions(attn_mask, is_causal, window, documents, key_lengths, alibi)
    return dispatch.diff_maps(q1, k1, q2, k2, given, scale)


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
    """A of `attention`, [B, H, T, S], in float32 (float64 for float64 inputs); memory O(T * S) for each map.

    Rows sum to 1, with a sink to 1 minus the sink's weight; rows with nothing to attend are 0.
    """
    given = Restrictions(attn_mask, is_causal, window, documents, key_lengths, alibi)
    return dispatch.softmax_map(q, k, given, scale, sink)


def implementations() -> dict[str, str | None]:
    """Name of each implementation -> why it cannot run on this machine (None: it can)."""
    return {name: module.unavailable() for name, module in dispatch.IMPLEMENTATIONS.items()}
