"""One pre-norm decoder for every attention variant: RMSNorm, SwiGLU without biases, rotary."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diffattn.model.cache import Cache
from diffattn.model.config import ModelConfig
from diffattn.model.generate import generate
from diffattn.ops.pointwise import rms_norm, swiglu
from diffattn.ops.positions import Tables, alibi_slopes, llama3_tables, rotary_tables, xpos_tables, yarn_tables
from diffattn.variants.base import Draw, Mixer, Where


class Decoder(nn.Module):
    """A language model of a config. Its weights have no meaning before `init_weights`; `build` does both.

    T tokens, B rows, V token ids, W width. `checkpoint_activations` keeps only the input of each layer for the
    backward pass and computes the rest again.
    """

    generate = generate

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        config.validate()
        self.config = config
        self.checkpoint_activations = False
        # nn.Embedding(V, W) would draw values, which on the meta device imports the compiler: seconds a process.
        empty = torch.empty(config.vocab_size, config.width)
        self.embedding = nn.Embedding.from_pretrained(empty, freeze=False)
        self.layers = nn.ModuleList([Block(config, layer) for layer in range(config.layers)])
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.unembedding = None if config.tied_embeddings else nn.Linear(config.width, config.vocab_size, bias=False)

    @property
    def head(self) -> Tensor:
        """The output matrix [V, W]; the embedding itself where they are tied."""
        return self.embedding.weight if self.unembedding is None else self.unembedding.weight

    def forward(
        self,
        tokens: Tensor,
        documents: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Give the logits [B, T, V] of the token after each of `tokens`; arguments as in `hidden`."""
        return F.linear(self.hidden(tokens, documents, attention_mask, cache), self.head)

    def hidden(
        self,
        tokens: Tensor,
        documents: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Give the states [B, T, W] behind the final norm; the logits are their product with `head`.

        tokens [B, T] of ids below V. documents [B, T]: attention stays within equal ids, a negative id is padding.
        attention_mask [B, T], 0 or False at padding on either side. With a cache, all three speak of the new tokens
        only, and padding stands on the left. States at padding have no meaning. ValueError: wrong shapes, full cache.
        """
        _check_shapes(tokens, documents, attention_mask)
        if attention_mask is not None:
            padding = attention_mask == 0
            tokens = tokens.masked_fill(padding, 0)
            documents = (torch.zeros_like(tokens) if documents is None else documents).masked_fill(padding, -1)
        elif cache is not None and documents is None:
            documents = torch.zeros_like(tokens)
        _check_ids(tokens, self.config.vocab_size)
        positions = self._positions(tokens, documents, attention_mask, cache)
        before = _documents_before(documents, cache)
        joined = None if documents is None or before is None else (documents == before)[..., None]
        wheres = self._wheres(positions, documents, cache)
        x = F.embedding(tokens, self.embedding.weight)
        if self.config.embedding_scale:
            x = x * math.sqrt(self.config.width)
        for layer, (block, where) in enumerate(zip(self.blocks(), wheres, strict=True)):
            if cache is not None:
                x = block(x, where, joined, cache.states[layer], cache.previous[layer])
            elif self.checkpoint_activations and torch.is_grad_enabled():
                x = checkpoint(block, x, where, joined, use_reentrant=False, preserve_rng_state=False)
                assert isinstance(x, Tensor)
            else:
                x = block(x, where, joined)
        return self.norm(x)

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """Allocate a cache for `batch` rows of up to `capacity` tokens each, padding included."""
        shifted = self.config.width // 2 if self.config.token_shift else 0
        return Cache([block.mixer for block in self.blocks()], batch, capacity, shifted, self.head)

    def blocks(self) -> list["Block"]:
        """List the layers from the first to the last."""
        return [block for block in self.layers if isinstance(block, Block)]

    def advance(self, share: float) -> None:
        """Tell every attention that this share of the training's steps, 0 to 1, lies behind."""
        for block in self.blocks():
            block.mixer.advance(share)

    def captured(self, tokens: Tensor, documents: Tensor | None = None) -> list[tuple[Mixer, Tensor, Where]]:
        """Run the model and give each layer's attention with the input [B, T, W] and restrictions it was called with.

        The forward pass is the ordinary one; hooks listen. No gradients.
        """
        seen: list[tuple[Mixer, Tensor, Where]] = []

        def listen(mixer: nn.Module, arguments: tuple) -> None:
            assert isinstance(mixer, Mixer)
            seen.append((mixer, arguments[0], arguments[1]))

        hooks = [block.mixer.register_forward_pre_hook(listen) for block in self.blocks()]
        try:
            with torch.no_grad():
                self.hidden(tokens, documents)
        finally:
            for hook in hooks:
                hook.remove()
        return seen

    def lambdas(self, tokens: Tensor, documents: Tensor | None = None) -> list[Tensor | None]:
        """Give λ of each layer: a scalar or [H] where it is a weight, [B, T, H] where it depends on the tokens."""
        with torch.no_grad():
            return [mixer.lam(x) for mixer, x, _ in self.captured(tokens, documents)]

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Fill every parameter; the same role has the same values in every model of this seed, as far as shapes allow.

        embedding, untied head: N(0, 1/W), or N(0, 0.02) without the embedding scale; norms: 1; gate, up: N(0, 1/W);
        down: N(0, 1/F) / sqrt(2 layers), drawn transposed so that feed-forwards of other widths share channels;
        attention: the variant's own table.
        """
        draw = Draw(seed)
        shape = (self.config.vocab_size, self.config.width)
        std = self.config.width**-0.5 if self.config.embedding_scale else 0.02
        self.embedding.weight.copy_(draw.normal("embedding", shape, std))
        if self.unembedding is not None:
            self.unembedding.weight.copy_(draw.normal("head", shape, std))
        self.norm.weight.fill_(1.0)
        for layer, block in enumerate(self.blocks()):
            block.init_weights(draw.at(f"layers.{layer}"))

    def _positions(
        self, tokens: Tensor, documents: Tensor | None, attention_mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """Number the tokens of each row [B, T] without its padding; one row [T] serves all where none is padded."""
        if documents is None or (attention_mask is None and cache is None):
            return torch.arange(tokens.shape[1], device=tokens.device)
        start = 0 if cache is None else cache.real[:, None]
        return ((documents >= 0).cumsum(dim=1) - 1 + start).clamp(min=0)

    def _wheres(self, positions: Tensor, documents: Tensor | None, cache: Cache | None) -> list[Where]:
        """Give each layer its restrictions; layers whose heads are as many and as wide share them."""
        if cache is not None:
            documents, key_lengths = cache.documents, cache.lengths
        else:
            key_lengths = None
        dtype = torch.float64 if self.head.dtype == torch.float64 else torch.float32
        by_heads: dict[tuple[int, int], Where] = {}
        wheres: list[Where] = []
        for block in self.blocks():
            heads = (block.mixer.heads, block.rotary_dim)
            if heads not in by_heads:
                tables, of_keys = self._tables(positions, block.rotary_dim, dtype)
                slopes = None
                if self.config.positions == "alibi":
                    slopes = alibi_slopes(block.mixer.heads, positions.device, dtype)
                by_heads[heads] = Where(
                    positions=tables,
                    key_positions=of_keys,
                    alibi=slopes,
                    documents=documents,
                    key_lengths=key_lengths,
                )
            wheres.append(by_heads[heads])
        return wheres

    def _tables(self, positions: Tensor, rotary_dim: int, dtype: torch.dtype) -> tuple[Tables | None, Tables | None]:
        """Give the rotary tables of the queries, and those of the keys where they are others."""
        config = self.config
        if not rotary_dim:
            return None, None
        if config.positions == "xpos":
            config.check_dtype(self.head.dtype)
            return xpos_tables(positions, rotary_dim, config.context / 2, config.rope_base, dtype, self.head.dtype)
        if config.rope_scaling in ("yarn", "llama3"):
            tables = yarn_tables if config.rope_scaling == "yarn" else llama3_tables
            original = config.rope_original_context or config.context / config.rope_factor
            return tables(positions, rotary_dim, config.rope_factor, original, config.rope_base, dtype), None
        return rotary_tables(positions, rotary_dim, config.rope_base, dtype, config.rope_factor), None


class RMSNorm(nn.Module):
    """`ops.pointwise.rms_norm` with a weight, which has no values before the model's `init_weights`."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., W] to the same shape."""
        return rms_norm(x, self.weight, self.eps)


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layers = config.layers
        self.token_shift = config.token_shift
        self.mixer_norm = RMSNorm(config.width, config.norm_eps)
        self.mixer = config.mixer_at(layer).build(config.site(layer))
        self.ffn_norm = RMSNorm(config.width, config.norm_eps)
        self.gate = nn.Linear(config.width, config.ffn_width, bias=False)
        self.up = nn.Linear(config.width, config.ffn_width, bias=False)
        self.down = nn.Linear(config.ffn_width, config.width, bias=False)
        rotary = config.positions in ("rope", "xpos")
        self.rotary_dim = int(self.mixer.head_dim * config.rope_share) // 2 * 2 if rotary else 0
        if rotary and not self.rotary_dim:
            raise ValueError(
                f"positions is {config.positions!r}, but rope_share {config.rope_share} of a head of "
                f"{self.mixer.head_dim} channels leaves no pair to turn; raise it, or widen the heads"
            )

    def forward(
        self,
        x: Tensor,
        where: Where,
        joined: Tensor | None = None,
        state: dict[str, Tensor] | None = None,
        previous: Tensor | None = None,
    ) -> Tensor:
        """Map x [B, T, W] to [B, T, W].

        For the token shift: joined [B, T, 1], whether the token before is of the same document (None: all are), and
        previous [B, 1, W/2], its cache, updated in place.
        """
        h = self.mixer_norm(x)
        if self.token_shift:
            h = _shift(h, joined, previous)
        x = x + self.mixer(h, where, state)
        h = self.ffn_norm(x)
        return x + self.down(swiglu(self.gate(h), self.up(h)))

    def init_weights(self, draw: Draw) -> None:
        """Fill every parameter; the table stands in `Decoder.init_weights`."""
        ffn_width, width = self.gate.weight.shape
        self.mixer_norm.weight.fill_(1.0)
        self.mixer.init_weights(draw.at("mixer"))
        self.ffn_norm.weight.fill_(1.0)
        self.gate.weight.copy_(draw.normal("gate", (ffn_width, width), width**-0.5))
        self.up.weight.copy_(draw.normal("up", (ffn_width, width), width**-0.5))
        down_std = ffn_width**-0.5 / math.sqrt(2 * self.layers)
        self.down.weight.copy_(draw.normal("down", (ffn_width, width), down_std).T)


def build(
    config: ModelConfig, seed: int = 0, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> Decoder:
    """Make a model with starting values; built on the meta device first, so that memory is taken once.

    dtype None: float32. ValueError: a config that no model can have, or none of this dtype.
    """
    config.check_dtype(dtype or torch.float32)
    with torch.device("meta"):
        model = Decoder(config)
    model.to(dtype=dtype or torch.float32).to_empty(device=device)
    model.init_weights(seed)
    return model


def _check_shapes(tokens: Tensor, documents: Tensor | None, attention_mask: Tensor | None) -> None:
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise ValueError(f"tokens must be [B, T] with at least one token a row; got shape {list(tokens.shape)}")
    if tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens must be int64 or int32 ids; got {tokens.dtype}")
    for name, given in (("documents", documents), ("attention_mask", attention_mask)):
        if given is not None and given.shape != tokens.shape:
            raise ValueError(f"{name} must have the shape of tokens, {list(tokens.shape)}; got {list(given.shape)}")


def _check_ids(tokens: Tensor, vocab_size: int) -> None:
    # Reading values would wait for a GPU, and cannot be compiled.
    if tokens.device.type != "cpu" or torch.compiler.is_compiling() or not tokens.numel():
        return
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(f"tokens: got ids from {low} to {high}; the vocabulary has ids 0 to {vocab_size - 1}")


def _documents_before(documents: Tensor | None, cache: Cache | None) -> Tensor | None:
    """Give each token the document id of the one before it; -2 where there is none. The cache takes in the new ids."""
    if documents is None:
        return None
    if cache is not None:
        return cache.extend(documents)
    return F.pad(documents[:, :-1], (1, 0), value=-2)


def _shift(x: Tensor, joined: Tensor | None, previous: Tensor | None) -> Tensor:
    """Replace the first half of the channels by those of the token before, 0 where it is of another document."""
    # Split, not sliced: the gradient of a slice is a whole tensor of zeros with the slice written into it.
    moved, kept = x.chunk(2, dim=-1)
    before, last = moved.split([x.shape[1] - 1, 1], dim=1)
    late = torch.cat((torch.zeros_like(last) if previous is None else previous, before), dim=1)
    if previous is not None:
        previous.copy_(last)
    if joined is not None:
        late = late.masked_fill(~joined, 0.0)
    return torch.cat((late, kept), dim=-1)
