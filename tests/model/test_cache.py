"""Decoding with a cache equals the full forward, and leaks as little."""

import pytest
import torch
from torch import Tensor

from diffattn.model.cache import Cache
from diffattn.model.decoder import Decoder
from support.implementations import RUNNING, home, with_dtypes
from support.models import VARIANTS, random_tokens, small_model

every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_implementation = pytest.mark.parametrize("impl", RUNNING)
with_and_without_shift = pytest.mark.parametrize("token_shift", [False, True])

PIECES = [5, 1, 3, 1, 1, 1]
MASK = torch.tensor([[0] * 3 + [1] * 9, [1] * 12, [0] * 6 + [1] * 6])


def decoded(
    model: Decoder, tokens: Tensor, mask: Tensor | None = None, documents: Tensor | None = None, capacity: int = 16
) -> Tensor:
    """Logits of all tokens, given to the model in PIECES."""
    cache = model.new_cache(len(tokens), capacity)
    logits: list[Tensor] = []
    with torch.no_grad():
        for start, size in zip(torch.tensor([0, *PIECES]).cumsum(0).tolist(), PIECES, strict=False):
            piece = slice(start, start + size)
            parts = [None if part is None else part[:, piece] for part in (documents, mask)]
            logits.append(model(tokens[:, piece], *parts, cache=cache))
    return torch.cat(logits, dim=1)


@every_variant
@with_dtypes(torch.float32, torch.float64, width=16)
@with_and_without_shift
def test_prefill_and_decode_equal_the_full_forward(
    variant: str, impl: str, token_shift: bool, dtype: torch.dtype
) -> None:
    # Float32 rounds at 6e-8 and sums some hundred terms; float64 at 1e-16.
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    model = small_model(variant, dtype, impl=impl, token_shift=token_shift, rope_share=0.5)
    tokens = random_tokens(3, 12)
    torch.testing.assert_close(decoded(model, tokens), model(tokens), rtol=0.0, atol=tolerance)
    padded, full = decoded(model, tokens, MASK), model(tokens, attention_mask=MASK)
    torch.testing.assert_close(padded[MASK == 1], full[MASK == 1], rtol=0.0, atol=tolerance)


@every_variant
@every_implementation
@with_and_without_shift
def test_packed_documents_decode_as_in_the_full_forward(variant: str, impl: str, token_shift: bool) -> None:
    model, tokens = small_model(variant, impl=impl, token_shift=token_shift), random_tokens(2, 12)
    documents = torch.tensor([[0] * 5 + [1] * 7, [2] * 10 + [3] * 2])
    full = model(tokens, documents)
    torch.testing.assert_close(decoded(model, tokens, documents=documents), full, **home(impl).close)


@every_variant
@every_implementation
@with_and_without_shift
def test_cached_decoding_leaks_nothing(variant: str, impl: str, token_shift: bool) -> None:
    model, tokens = small_model(variant, impl=impl, token_shift=token_shift), random_tokens(3, 12)
    documents = torch.tensor([[0] * 12, [4] * 8 + [5] * 4, [0] * 12])
    before = decoded(model, tokens, MASK, documents)
    other = tokens.clone()
    other[0, :3] = (other[0, :3] + 7) % 40  # padding
    other[1, 2] = (other[1, 2] + 7) % 40  # another document
    other[2, 8] = (other[2, 8] + 7) % 40  # the future, within one piece and beyond
    after = decoded(model, other, MASK, documents)
    for row, unchanged in ((0, slice(3, 12)), (1, slice(8, 12)), (2, slice(6, 8))):
        torch.testing.assert_close(after[row, unchanged], before[row, unchanged], **home(impl).close)
    assert (after[1, 2:8] - before[1, 2:8]).abs().max() > 1e-4
    assert (after[2, 8:] - before[2, 8:]).abs().max() > 1e-4


@every_variant
def test_capacity_changes_nothing_and_buffers_keep_their_place(variant: str) -> None:
    model, tokens = small_model(variant), random_tokens(3, 12)
    torch.testing.assert_close(decoded(model, tokens, capacity=12), decoded(model, tokens, capacity=40))
    cache = model.new_cache(1, 8)
    places = [(tensor.data_ptr(), tensor.shape) for tensor in buffers(cache)]
    with torch.no_grad():
        model(tokens[:1, :5], cache=cache)
        model(tokens[:1, 5:6], cache=cache)
    assert [(tensor.data_ptr(), tensor.shape) for tensor in buffers(cache)] == places
    assert cache.lengths.tolist() == [6] and cache.used == 6


def test_ids_of_32_bits_serve_as_well() -> None:
    model, tokens = small_model(token_shift=True), random_tokens(3, 12)
    documents = torch.tensor([[0] * 5 + [1] * 7]).expand(3, 12)
    short = decoded(model, tokens.int(), MASK.bool(), documents.int())
    assert torch.equal(short, decoded(model, tokens, MASK, documents))
    assert torch.equal(decoded(model, tokens.int()), decoded(model, tokens))
    new = model.generate(tokens.int(), max_new_tokens=3)
    assert new.dtype == torch.int32 and torch.equal(new.long(), model.generate(tokens, max_new_tokens=3))


def test_positions_do_not_count_padding() -> None:
    model = small_model()
    cache = model.new_cache(3, 16)
    with torch.no_grad():
        model(random_tokens(3, 12), attention_mask=MASK, cache=cache)
    assert cache.lengths.tolist() == [12, 12, 12]
    assert cache.real.tolist() == [9, 12, 6]


def test_a_full_cache_and_a_wrong_batch_are_refused() -> None:
    model = small_model()
    cache = model.new_cache(2, 4)
    with torch.no_grad():
        model(random_tokens(2, 3), cache=cache)
        with pytest.raises(ValueError, match="4 slots, 3 of them full; 2 more"):
            model(random_tokens(2, 2), cache=cache)
        with pytest.raises(ValueError, match="made for 2 rows"):
            model(random_tokens(1, 1), cache=cache)
        assert cache.used == 3
        assert model(random_tokens(2, 1), cache=cache).shape == (2, 1, 40)
    with pytest.raises(ValueError, match="at least 1 row and 1 slot"):
        model.new_cache(0, 4)


def buffers(cache: Cache) -> list[Tensor]:
    own = [cache.documents, cache.lengths, cache.real]
    return own + [tensor for state in cache.states for tensor in state.values()]
