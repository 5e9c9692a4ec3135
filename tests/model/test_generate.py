"""Generation: rows do not disturb one another, seeds repeat, and what cannot be done is refused at the door."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from diffattn.model import generate as generation
from diffattn.model.decoder import Decoder
from diffattn.model.generate import probabilities
from support.models import VARIANTS, random_tokens, small_model

every_variant = pytest.mark.parametrize("variant", VARIANTS)
MASK = torch.tensor([[0] * 3 + [1] * 5, [1] * 8, [0] * 7 + [1]])


def slowly(model: Decoder, prompt: list[int], steps: int) -> list[int]:
    """Greedy text without cache: the whole sequence again for each token."""
    text = list(prompt)
    for _ in range(steps):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text


@every_variant
@pytest.mark.parametrize("token_shift", [False, True])
def test_a_row_reads_the_same_alone_and_in_a_batch(variant: str, token_shift: bool) -> None:
    model, prompts = small_model(variant, token_shift=token_shift), random_tokens(3, 8)
    together = model.generate(prompts, attention_mask=MASK, max_new_tokens=10)
    for row, mask in enumerate(MASK):
        prompt = prompts[row][mask == 1]
        alone = model.generate(prompt[None], max_new_tokens=10)[0]
        assert together[row, -10:].tolist() == alone[-10:].tolist()
        assert alone.tolist() == slowly(model, prompt.tolist(), 10)


def test_prompts_are_returned_as_given_before_the_new_tokens() -> None:
    model, prompts = small_model(), random_tokens(3, 8)
    result = model.generate(prompts, attention_mask=MASK, max_new_tokens=1)
    assert result.shape == (3, 9) and result.dtype == prompts.dtype
    assert torch.equal(result[:, :8], prompts)


def test_long_prompts_enter_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = small_model("diff_v1", token_shift=True), random_tokens(3, 8)
    whole = model.generate(prompts, attention_mask=MASK, max_new_tokens=10)
    monkeypatch.setattr(generation, "PREFILL", 3)
    assert torch.equal(model.generate(prompts, attention_mask=MASK, max_new_tokens=10), whole)


def test_a_row_ends_at_end_of_text_and_the_others_go_on() -> None:
    model, prompts = small_model("diff_v1"), random_tokens(3, 8)
    free = model.generate(prompts, attention_mask=MASK, max_new_tokens=12)[:, 8:].tolist()
    eos = free[0][2]
    ends = [row.index(eos) if eos in row else 11 for row in free]
    pad = next(token for token in range(40) if token != eos)
    result = model.generate(prompts, attention_mask=MASK, max_new_tokens=12, eos=eos, pad=pad)[:, 8:]
    assert result.shape[1] == max(ends) + 1
    for row, end in enumerate(ends):
        assert result[row, : end + 1].tolist() == free[row][: end + 1]
        assert set(result[row, end + 1 :].tolist()) <= {pad}
    alone = model.generate(prompts[:1], attention_mask=MASK[:1], max_new_tokens=12, eos=eos)
    assert alone[0, 8:].tolist() == free[0][: free[0].index(eos) + 1]


def test_sampling_repeats_with_its_seed_and_not_with_another() -> None:
    model, prompts = small_model("diff_v1"), random_tokens(2, 4)
    options = {"max_new_tokens": 15, "temperature": 1.0}
    first = model.generate(prompts, seed=3, **options)
    assert torch.equal(model.generate(prompts, seed=3, **options), first)
    assert not torch.equal(model.generate(prompts, seed=4, **options), first)
    # A row's draws are its own: the first row alone, and a shorter text, begin alike.
    assert torch.equal(model.generate(prompts[:1], seed=3, **options), first[:1])
    assert torch.equal(model.generate(prompts, seed=3, max_new_tokens=5, temperature=1.0), first[:, :9])
    torch.manual_seed(0)
    free = model.generate(prompts, **options)
    torch.manual_seed(0)
    assert torch.equal(model.generate(prompts, **options), free)


def test_equal_prompts_in_a_batch_get_texts_of_their_own() -> None:
    texts = small_model().generate(random_tokens(1, 4).expand(4, 4), max_new_tokens=12, temperature=2.0, seed=0)
    assert len({tuple(row) for row in texts.tolist()}) == 4


def test_samples_have_the_frequencies_of_the_distribution() -> None:
    model, prompt = small_model("diff_v2"), random_tokens(1, 4)
    rows = 5000
    new = model.generate(prompt.expand(rows, 4), max_new_tokens=1, temperature=0.8, top_k=6, seed=0)[:, -1]
    expected = probabilities(model(prompt)[:, -1], 0.8, 6, None, None)[0]
    measured = torch.bincount(new, minlength=40) / rows
    assert (measured[expected == 0] == 0).all()
    # Five standard errors of a share, 0.5 / sqrt(n) at most.
    assert (measured - expected).abs().max() < 5 * 0.5 / math.sqrt(rows)


def filtered_slowly(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> list[float]:
    """The documented filters, one token at a time."""
    weights = {token: math.exp((logit - max(logits)) / temperature) for token, logit in enumerate(logits)}
    ranked = sorted(weights, key=lambda token: (-weights[token], token))
    kept = ranked[:top_k]
    if top_p is not None:
        total, reached, nucleus = sum(weights[token] for token in kept), 0.0, []
        for token in kept:
            if reached / total >= top_p:
                break
            nucleus.append(token)
            reached += weights[token]
        kept = nucleus
    if min_p is not None:
        kept = [token for token in kept if weights[token] >= min_p * weights[ranked[0]]]
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(logits))]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(
    "filters",
    [(None, None, None), (3, None, None), (None, 0.7, None), (None, None, 0.2), (5, 0.6, 0.3), (100, 1.0, 0.0)],
)
def test_filters_equal_the_slow_formula(
    temperature: float, filters: tuple[int | None, float | None, float | None]
) -> None:
    logits = torch.randn(6, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    logits[:, 7] = logits[:, 2]  # equals: the smaller id goes first
    expected = torch.tensor(
        [filtered_slowly(row, temperature, *filters) for row in logits.tolist()], dtype=torch.float64
    )
    torch.testing.assert_close(probabilities(logits, temperature, *filters), expected, rtol=0.0, atol=1e-12)


def test_sampling_from_one_token_is_greedy() -> None:
    model, prompts = small_model("diff_v1"), random_tokens(2, 6)
    greedy = model.generate(prompts, max_new_tokens=8)
    assert torch.equal(model.generate(prompts, max_new_tokens=8, temperature=1.0, top_k=1, seed=0), greedy)


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (torch.zeros(1, 0, dtype=torch.int64), {}, "at least one token"),
        (torch.zeros(3, dtype=torch.int64), {}, r"give tokens\[None\]"),
        (torch.tensor([[1, 40]]), {}, "token id 40; the vocabulary has ids 0 to 39"),
        (torch.tensor([[1, -1]]), {}, "token id -1"),
        (torch.ones(1, 20, dtype=torch.int64), {"max_new_tokens": 5}, "need 25 positions; the model's context is 24"),
        (torch.ones(1, 2, dtype=torch.int64), {"max_new_tokens": 0}, "max_new_tokens: got 0"),
        (torch.ones(1, 2, dtype=torch.int64), {"max_new_tokens": 2.5}, "max_new_tokens: got 2.5, needs a whole number"),
        (
            torch.ones(1, 2, dtype=torch.int64),
            {"temperature": 1.0, "top_k": 2.5},
            "top_k: got 2.5, needs a whole number",
        ),
        (torch.ones(1, 2, dtype=torch.int64), {"temperature": 1.0, "seed": 0.5}, "seed: got 0.5, needs a whole number"),
        (torch.ones(1, 2, dtype=torch.int64), {"temperature": -0.1}, "temperature is -0.1"),
        (torch.ones(1, 2, dtype=torch.int64), {"temperature": math.nan}, "temperature is nan"),
        (torch.ones(1, 2, dtype=torch.int64), {"temperature": 1.0, "top_k": 0}, "top_k: got 0"),
        (torch.ones(1, 2, dtype=torch.int64), {"temperature": 1.0, "top_p": 0.0}, "top_p is 0.0"),
        (torch.ones(1, 2, dtype=torch.int64), {"temperature": 1.0, "min_p": 1.5}, "min_p is 1.5"),
        (torch.ones(1, 2, dtype=torch.int64), {"top_k": 5}, "give a temperature above 0"),
        (torch.ones(1, 2, dtype=torch.int64), {"eos": 40}, "eos is 40"),
        (torch.ones(1, 2, dtype=torch.int64), {"attention_mask": torch.tensor([[1, 0]])}, "padded on the left"),
        (torch.ones(1, 2, dtype=torch.int64), {"attention_mask": torch.tensor([[0, 0]])}, "a prompt is empty"),
        (torch.ones(1, 2, dtype=torch.int64), {"attention_mask": torch.tensor([[1]])}, r"shape \[1, 2\]"),
    ],
)
def test_impossible_requests_are_refused(tokens: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_model().generate(tokens, **options)


def test_padding_does_not_count_against_the_context() -> None:
    model = small_model()
    prompts = torch.ones(1, 22, dtype=torch.int64)
    mask = torch.tensor([[0] * 12 + [1] * 10])
    short = model.generate(prompts[:, :10], max_new_tokens=14)
    assert torch.equal(model.generate(prompts, attention_mask=mask, max_new_tokens=14)[:, 12:], short)


def test_a_tiny_temperature_takes_the_likeliest_token() -> None:
    model, prompts = small_model(), random_tokens(2, 4)
    greedy = model.generate(prompts, max_new_tokens=5)
    assert torch.equal(model.generate(prompts, max_new_tokens=5, temperature=1e-308, seed=0), greedy)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(temperature: float) -> None:
    model = small_model()
    torch.nn.init.constant_(model.norm.weight, torch.nan)
    with pytest.raises(ValueError, match="logits are not finite"):
        model.generate(random_tokens(1, 4), temperature=temperature)
