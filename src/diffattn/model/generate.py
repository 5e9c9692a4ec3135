"""Text from a decoder: greedy or sampled, left-padded batches, end-of-text."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from diffattn.variants.base import check_whole

if TYPE_CHECKING:
    from diffattn.model.cache import Cache
    from diffattn.model.decoder import Decoder

PREFILL = 1024
"""Prompt tokens per pass; a longer prompt enters in pieces, so that no mask of its square length is held."""


@torch.no_grad()
def generate(
    model: "Decoder",
    tokens: Tensor,
    attention_mask: Tensor | None = None,
    max_new_tokens: int = 20,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int | Sequence[int] | None = None,
    eos: int | None = None,
    pad: int | None = None,
) -> Tensor:
    """Continue prompts [B, T] and return them with their new tokens, [B, T + n], n <= max_new_tokens.

    attention_mask [B, T]: 0 at padding, which stands on the left. temperature 0 takes the likeliest token; above 0 it
    samples from what top_k, top_p and min_p leave (see `probabilities`): row r's text then depends on seed and r, not
    on the rest of the batch; seed None draws one from torch's generator, a sequence [B] has one for each row: its text
    is then the one that this row would have alone. A row that has produced the id eos
    goes on with pad (None: eos again), and the call ends early when every row has.
    ValueError: empty prompts, ids outside the vocabulary, more tokens than the context, settings out of
    range, logits that are not finite.
    """
    _check_settings(max_new_tokens, temperature, top_k, top_p, min_p, seed, len(tokens))
    for name, token in (("eos", eos), ("pad", pad)):
        if token is not None and not 0 <= token < model.config.vocab_size:
            raise ValueError(f"{name} is {token}; the vocabulary has ids 0 to {model.config.vocab_size - 1}")
    _check_prompts(model, tokens, attention_mask, max_new_tokens)
    batch, prompt = tokens.shape
    draws = _draws(seed, batch, max_new_tokens).to(tokens.device) if temperature > 0 else None
    finished = torch.zeros(batch, dtype=torch.bool, device=tokens.device)
    cache = model.new_cache(batch, prompt + max_new_tokens)
    state = _prefill(model, tokens, attention_mask, cache)
    texts = tokens
    for step in range(max_new_tokens):
        logits = state @ model.head.T
        if not bool(torch.isfinite(logits).all()):
            raise ValueError(
                "the model's logits are not finite: its weights hold NaN or infinity, or overflow in dtype"
            )
        if draws is None:
            new = logits.argmax(dim=-1)
        else:
            new = _pick(probabilities(logits, temperature, top_k, top_p, min_p), draws[:, step])
        if eos is not None:
            new = new.masked_fill(finished, eos if pad is None else pad)
            finished = finished | (new == eos)
        new = new[:, None].to(tokens.dtype)
        texts = torch.cat((texts, new), dim=1)
        if step == max_new_tokens - 1 or (eos is not None and bool(finished.all())):
            break
        state = model.hidden(new, cache=cache)[:, -1]
    return texts


def probabilities(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> Tensor:
    """Turn logits [B, V] into the distribution [B, V] to sample from, float64.

    In this order, each on what the one before left, renormalised: softmax(logits / temperature); the top_k likeliest
    (of equals, the smaller ids); the fewest tokens, likeliest first, whose sum reaches top_p; those with at least
    min_p times the greatest probability (arXiv 2407.01082).
    """
    # The greatest is subtracted before the division, which a tiny temperature would let overflow to infinity.
    logits = logits.double()
    distances = logits - logits.amax(dim=-1, keepdim=True)
    p, ids = torch.softmax(distances / temperature, dim=-1).sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        p = p.masked_fill(torch.arange(p.shape[-1], device=p.device) >= top_k, 0.0)
    if top_p is not None:
        share = p / p.sum(dim=-1, keepdim=True)
        p = p.masked_fill(share.cumsum(dim=-1) - share >= top_p, 0.0)
    if min_p is not None:
        p = p.masked_fill(p < min_p * p[:, :1], 0.0)
    return torch.zeros_like(p).scatter(-1, ids, p / p.sum(dim=-1, keepdim=True))


def _prefill(model: "Decoder", tokens: Tensor, attention_mask: Tensor | None, cache: "Cache") -> Tensor:
    """Take the prompts [B, T] into the cache, in pieces, and give the state [B, W] of their last tokens."""
    state = tokens
    for start in range(0, tokens.shape[1], PREFILL):
        piece = slice(start, start + PREFILL)
        mask = None if attention_mask is None else attention_mask[:, piece]
        state = model.hidden(tokens[:, piece], attention_mask=mask, cache=cache)[:, -1]
    return state


def _pick(p: Tensor, draw: Tensor) -> Tensor:
    """Give each row of p [B, V] the first id whose cumulative probability exceeds its draw in [0, 1)."""
    cumulative = p.cumsum(dim=-1)
    # Scaled by the last sum, which rounding may leave below 1; so the id found always has a probability above 0.
    return torch.searchsorted(cumulative, draw[:, None] * cumulative[:, -1:], right=True)[:, 0]


def _draws(seed: int | Sequence[int] | None, batch: int, steps: int) -> Tensor:
    """Draw from [0, 1) for each row and step, float64; row r's numbers depend on the seed and r alone."""
    if seed is None:
        seed = int(torch.randint(2**31, ()))
    source = torch.Generator()
    rows: list[Tensor] = []
    # 1_000_003 rows before two seeds meet; steps come in order, so a longer text begins like the shorter one.
    seeds = [seed * 1_000_003 + row for row in range(batch)] if isinstance(seed, int) else [s * 1_000_003 for s in seed]
    for own in seeds:
        source.manual_seed(own % 2**63)
        rows.append(torch.rand(steps, generator=source, dtype=torch.float64))
    return torch.stack(rows)


def _check_settings(
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    seed: int | Sequence[int] | None,
    batch: int,
) -> None:
    check_whole("max_new_tokens", max_new_tokens, 1)
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature is {temperature}; it must be 0 (the likeliest token) or above")
    if top_k is not None:
        check_whole("top_k", top_k, 1)
    for own in seed if isinstance(seed, Sequence) and not isinstance(seed, str) else [0 if seed is None else seed]:
        if not isinstance(own, int) or isinstance(own, bool):
            raise ValueError(f"seed: got {own!r}, needs a whole number or None")
    if isinstance(seed, Sequence) and len(seed) != batch:
        raise ValueError(f"seed: got {len(seed)} numbers for {batch} rows; give one for each, or one for all")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; it must lie above 0 and at most at 1")
    if min_p is not None and not 0 <= min_p <= 1:
        raise ValueError(f"min_p is {min_p}; it must lie between 0 and 1")
    if temperature == 0 and (top_k, top_p, min_p) != (None, None, None):
        raise ValueError("top_k, top_p and min_p choose what to sample from; give a temperature above 0 with them")


def _check_prompts(model: "Decoder", tokens: Tensor, attention_mask: Tensor | None, max_new_tokens: int) -> None:
    if tokens.dim() != 2 or tokens.numel() == 0:
        raise ValueError(
            f"prompts must be [B, T] with at least one token each; got shape {list(tokens.shape)}"
            + ("; for one prompt give tokens[None]" if tokens.dim() == 1 and tokens.numel() else "")
        )
    mask = torch.ones_like(tokens) if attention_mask is None else attention_mask
    if mask.shape != tokens.shape:
        raise ValueError(f"attention_mask must have the prompts' shape {list(tokens.shape)}; got {list(mask.shape)}")
    real = mask != 0
    if not real.any(dim=1).all():
        raise ValueError("a prompt is empty: attention_mask has a row of zeros; give each row at least one token")
    if (real[:, :-1] & ~real[:, 1:]).any():
        raise ValueError("prompts of different length must be padded on the left; attention_mask has a 0 after a 1")
    ids, vocab_size = tokens[real], model.config.vocab_size
    if ids.min() < 0 or ids.max() >= vocab_size:
        wrong = int(ids[(ids < 0) | (ids >= vocab_size)][0])
        raise ValueError(f"a prompt has the token id {wrong}; the vocabulary has ids 0 to {vocab_size - 1}")
    longest, context = int(real.sum(dim=1).max()), model.config.context
    if longest + max_new_tokens > context:
        raise ValueError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones need {longest + max_new_tokens} positions; "
            f"the model's context is {context}: shorten the prompt or lower max_new_tokens"
        )
