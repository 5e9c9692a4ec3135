"""Any variant as a drop-in layer, with rotary tables and a cache of its own."""

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor, nn

from diffattn.ops.positions import rotary_tables
from diffattn.variants.base import Draw, MixerConfig, Site, Where, check_whole

Rope = tuple[Tensor, Tensor] | Literal[False] | None


@dataclasses.dataclass
class LayerCache:
    """Keys and values of the tokens seen so far; `Layer.forward` advances it in place. It carries no gradients."""

    state: dict[str, Tensor]
    lengths: Tensor
    """[B]: tokens stored."""
    capacity: int
    """Tokens that fit."""


class Layer(nn.Module):
    """One attention layer [B, T, W] -> [B, T, W], called with tensors alone."""

    def __init__(self, config: MixerConfig, site: Site) -> None:
        super().__init__()
        self.config = config
        self.site = site
        self.mixer = config.build(site)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        rope: Rope = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = True,
        window: int | None = None,
        documents: Tensor | None = None,
        cache: LayerCache | None = None,
        alibi: Tensor | None = None,
    ) -> Tensor:
        """Attend within x [B, T, W], or from x to memory [B, S, W] (cross-attention: no rotary, not causal).

        Args:
            rope: None: rotary at positions 0..T-1 (after the cached ones), base 10000; False: none; or (cos, sin), each
                [T, R/2] or [B, T, R/2] with R <= head_dim. Tables with more rows than T are read at these positions.
            attn_mask: boolean (True: may attend) or additive, broadcastable to [B, H, T, S].
            is_causal: whether a token sees none after itself; without effect on cross-attention, which has no order.
            window: keys that a query sees, its own position included.
            documents: ids of the keys, [B, S], negative for padding; with a cache S is its capacity.
            cache: from `new_cache`; the tokens of x are appended. No gradients flow into a cache.
            alibi: slopes [H] of a distance bias (`ops.positions.alibi_slopes`), beside rotary unless rope is False.

        Raises:
            ValueError: shapes or dtypes that do not fit, a full cache, a cache, rotary or alibi together with memory.
        """
        where = self._where(x, memory, rope, attn_mask, is_causal, window, documents, cache, alibi)
        if cache is None:
            return self.mixer(x, where)
        y = self.mixer(x, where, cache.state)
        cache.lengths += x.shape[1]
        return y

    def maps(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        rope: Rope = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = True,
        window: int | None = None,
        documents: Tensor | None = None,
        alibi: Tensor | None = None,
    ) -> Tensor:
        """Give the effective signed map of each output head, [B, H, T, S]; arguments as in a call."""
        where = self._where(x, memory, rope, attn_mask, is_causal, window, documents, None, alibi)
        return self.mixer.maps(x, where)

    def new_cache(self, batch: int, capacity: int) -> LayerCache:
        """Make an empty cache for `batch` sequences of up to `capacity` tokens, in the weights' dtype and device."""
        check_whole("batch", batch, 1)
        check_whole("capacity", capacity, 1)
        state = self.mixer.new_state(batch, capacity)
        device = next(self.parameters()).device
        return LayerCache(state, torch.zeros(batch, dtype=torch.long, device=device), capacity)

    def _where(
        self,
        x: Tensor,
        memory: Tensor | None,
        rope: Rope,
        attn_mask: Tensor | None,
        is_causal: bool,
        window: int | None,
        documents: Tensor | None,
        cache: LayerCache | None,
        alibi: Tensor | None,
    ) -> Where:
        self._check(x, memory, rope, is_causal, cache)
        if memory is not None and alibi is not None:
            raise ValueError("cross-attention has no distances: give memory without alibi")
        key_lengths = None
        if cache is not None:
            key_lengths = cache.lengths + x.shape[1]
            if not torch.compiler.is_compiling() and int(key_lengths.max()) > cache.capacity:
                raise ValueError(f"the cache holds {cache.capacity} tokens and {int(key_lengths.max())} are needed")
        return Where(
            positions=None if memory is not None or rope is False else self._tables(x, rope, cache),
            attn_mask=attn_mask,
            is_causal=is_causal and memory is None,
            window=window,
            documents=documents,
            key_lengths=key_lengths,
            alibi=alibi,
            memory=memory,
        )

    def _check(self, x: Tensor, memory: Tensor | None, rope: Rope, is_causal: bool, cache: LayerCache | None) -> None:
        if x.ndim != 3 or x.shape[-1] != self.site.width:
            raise ValueError(f"x must be [batch, tokens, {self.site.width}], got {list(x.shape)}")
        if memory is not None and (memory.ndim != 3 or memory.shape[::2] != x.shape[::2]):
            raise ValueError(f"memory must be [{x.shape[0]}, tokens, {self.site.width}], got {list(memory.shape)}")
        # Matrices alone: autocast converts tokens for them, and vectors (norms, lambdas) may be kept in more precision.
        dtypes = {p.dtype for p in self.parameters() if p.ndim == 2}
        for name, given in (("x", x), ("memory", memory)):
            if given is not None and given.dtype not in dtypes and not torch.is_autocast_enabled(x.device.type):
                needed = " or ".join(sorted(map(str, dtypes)))
                raise ValueError(f"{name}: got {given.dtype}, needs {needed} like the weights; convert one of them")
        if not isinstance(is_causal, bool):
            raise ValueError(f"is_causal: got {is_causal!r}, needs True or False")
        pair = isinstance(rope, (tuple, list)) and len(rope) == 2 and all(isinstance(part, Tensor) for part in rope)
        if not (rope is None or rope is False or pair):
            got = f"{type(rope).__name__} of {len(rope)}" if isinstance(rope, (tuple, list)) else repr(rope)
            raise ValueError(f"rope: got {got}, needs None (rotary), False (none) or a pair of tensors (cos, sin)")
        if memory is not None and (cache is not None or rope):
            raise ValueError("cross-attention has no rotary and no cache: give memory without them")
        if cache is not None and cache.lengths.shape[0] != x.shape[0]:
            raise ValueError(f"cache: made for a batch of {cache.lengths.shape[0]}, needs {x.shape[0]} as in x")

    def _tables(self, x: Tensor, rope: tuple[Tensor, Tensor] | None, cache: LayerCache | None) -> tuple[Tensor, Tensor]:
        positions = torch.arange(x.shape[1], device=x.device)
        if cache is not None:
            positions = cache.lengths[:, None] + positions
        if rope is None:
            dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
            return rotary_tables(positions, self.mixer.head_dim, dtype=dtype)
        cos, sin = rope
        if cos.ndim == 2 and cos.shape[0] > x.shape[1]:
            return cos[positions], sin[positions]
        return cos, sin


def layer(
    name: str,
    *,
    width: int,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    layer: int = 0,
    layers: int = 1,
    context: int = 2048,
    seed: int = 0,
    **options: Any,
) -> Layer:
    """Make an attention layer of the variant `name`, initialised.

    Args:
        width: W of the tokens [B, T, W].
        heads: output heads, those that leave the layer.
        kv_heads: key/value groups; None: as many as heads.
        head_dim: width of one query or key head; None: the variant's own from width and heads.
        layer: number of the layer in its model, from 0, of `layers`.
        context: longest sequence in tokens.
        seed: of the starting weights, which are those of a model of this seed.
        options: the fields of the variant's config.

    Raises:
        ValueError: unknown names, and sizes that do not fit.
    """
    fields = {"name": name, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, **options}
    config = MixerConfig.from_dict(fields)
    site = Site(width=width, layer=layer, layers=layers, context=context)
    made = Layer(config, site)
    made.mixer.init_weights(Draw(seed).at(f"layers.{layer}").at("mixer"))
    return made
