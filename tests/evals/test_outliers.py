"""Massive values, against all of them sorted."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from diffattn.data.base import Batch
from diffattn.evals.inside import Spread
from diffattn.evals.instruments import look_inside
from diffattn.evals.outliers import OutlierSums, SpreadSums, outliers
from diffattn.variants import names
from support.inside import maps_of, stirred_model, text_batch

BIN = 1 / 32
"""Width of a bin of the histogram, relative to a value in it."""


def check(found: Spread, values: np.ndarray) -> None:
    """Compare with the sorted values."""
    size = -np.sort(-np.abs(values).ravel())
    assert found.count == len(size)
    for rank, value in ((1, found.top1), (2, found.top2), (3, found.top3), (10, found.top10), (100, found.top100)):
        # A product of another shape may round otherwise.
        assert value == pytest.approx(size[min(rank, len(size)) - 1], rel=1e-12)
    middle = (
        size[len(size) // 2 : len(size) // 2 + 1] if len(size) % 2 else size[len(size) // 2 - 1 : len(size) // 2 + 1]
    )
    assert middle.min() * (1 - BIN) <= found.median <= middle.max() * (1 + BIN)
    assert found.rms == pytest.approx(np.sqrt(np.square(values).mean()), rel=1e-6)
    assert found.ratio == pytest.approx(size[0] / found.rms, rel=1e-6)
    centred = values - values.mean()
    assert found.kurtosis == pytest.approx((centred**4).mean() / np.square(centred).mean() ** 2, rel=1e-6)


def test_spread_of_a_stream() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(7001, generator=generator, dtype=torch.float64) ** 3 + 0.2
    sums = SpreadSums()
    for part in values.split(1000):
        sums.add(part)
    check(sums.result(), values.numpy())


def test_the_first_token_is_told_apart() -> None:
    """As those of a softmax model with an attention sink: 3000 in one channel of each document's first token."""
    model, batch = stirred_model("diff_v1"), text_batch()
    begins = torch.zeros(3, 20, dtype=torch.bool)
    begins[:, 0] = begins[1, 8] = begins[2, 13] = True

    def plant(_: torch.nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[..., 5][begins] = 3000.0
        return output

    hidden: list[np.ndarray] = []
    model.blocks()[0].register_forward_hook(plant)
    model.blocks()[0].register_forward_hook(lambda _, __, output: hidden.append(output.detach().numpy()))
    found = outliers(model, [batch])
    layer = found.layers[0]
    assert layer.hidden_apart.others is not None and found.hidden_apart.others is not None
    check(layer.hidden, hidden[0])
    check(layer.hidden_apart.first, hidden[0][begins.numpy()])
    check(layer.hidden_apart.others, hidden[0][~begins.numpy()])
    assert layer.hidden_apart.first.top3 == 3000.0 > 100 * layer.hidden_apart.others.top1
    assert found.hidden_apart.first.count + found.hidden_apart.others.count == found.hidden.count
    assert found.hidden_ratio == max(layer.hidden.ratio for layer in found.layers)
    assert layer.hidden.ratio == pytest.approx(3000 / np.sqrt(np.square(hidden[0]).mean()), rel=1e-6)


def test_logits_to_the_first_visible_key_are_told_apart() -> None:
    model, batch = stirred_model("diff_v1"), text_batch()
    found = outliers(model, [batch])
    ids = batch.documents.numpy()
    visible = np.tril(ids[:, :, None] == ids[:, None])
    to_first = np.zeros_like(visible)
    np.put_along_axis(to_first, visible.argmax(-1)[..., None], True, axis=-1)
    for layer, (mixer, x, where) in zip(found.layers, model.captured(*batch[::2]), strict=True):
        with torch.no_grad():
            factors = mixer.logit_factors(x, where)
            products = [(q @ k.repeat_interleave(2, 1).mT).numpy().transpose(1, 0, 2, 3) for q, k in factors]
        assert layer.logits_apart.others is not None
        for spread, chosen in (
            (layer.logits_apart.first, to_first),
            (layer.logits_apart.others, visible & ~to_first),
        ):
            check(spread, np.concatenate([product[:, chosen].ravel() for product in products]))


def test_windows_of_one_token_have_no_others() -> None:
    batch = Batch(*(part[:, :1] for part in text_batch()))
    found = outliers(stirred_model("softmax"), [batch])
    assert found.hidden_apart.others is None and found.layers[0].logits_apart.others is None
    assert found.hidden_apart.first == found.hidden


@pytest.mark.parametrize("tokens", [1, 20, 33, 60])
def test_so_many_tokens_are_looked_at_and_no_more(tokens: int) -> None:
    model, batch = stirred_model("softmax"), text_batch()
    found = outliers(model, [batch], tokens)
    assert found.tokens == tokens and found.hidden.count == tokens * 32 * 2
    whole, rest = divmod(tokens, 20)
    by_hand = [Batch(*(part[:whole] for part in batch))] if whole else []
    by_hand += [Batch(*(part[whole : whole + 1, :rest] for part in batch))] if rest else []
    assert outliers(model, by_hand).hidden.top1 == pytest.approx(found.hidden.top1, rel=1e-12)


def test_more_tokens_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="61 tokens are needed, there are 60"):
        outliers(stirred_model("softmax"), [text_batch()], 61)
    with pytest.raises(ValueError, match="tokens: got 0"):
        outliers(stirred_model("softmax"), [text_batch()], 0)


def test_few_values_have_fewer_ranks() -> None:
    sums = SpreadSums()
    sums.add(torch.tensor([[-3.0, 0.0], [1.0, 0.0]]), count=2)
    found = sums.result()
    assert (found.top1, found.top2, found.top3, found.top100) == (3.0, 1.0, 1.0, 1.0)
    assert found.median == pytest.approx(1.0, rel=BIN)


def test_zeros_have_no_kurtosis() -> None:
    sums = SpreadSums()
    sums.add(torch.zeros(5))
    found = sums.result()
    assert (found.median, found.ratio, found.kurtosis) == (0.0, None, None)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_finite_number_is_none(bad: float) -> None:
    sums = SpreadSums()
    for part in torch.tensor([1.0, bad, *range(2, 300)]).split(150):
        sums.add(part)
    found = sums.result()
    assert (found.top1, found.top2, found.rms, found.ratio, found.kurtosis) == (None, 299.0, None, None, None)
    assert found.median == pytest.approx(150, rel=BIN)
    sums.merge(sums)
    assert (sums.result().top2, sums.result().top3) == (None, 299.0)


def test_powers_that_overflow_are_none() -> None:
    sums = SpreadSums()
    sums.add(torch.tensor([1e30, -2e30]))
    found = sums.result()
    assert found.top1 == pytest.approx(2e30) and (found.rms, found.ratio, found.kurtosis) == (None, None, None)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("variant", ["diff_v1", "diff_v2", "map_mix"])
def test_a_broken_weight_leaves_results_that_are_json(variant: str, bad: float) -> None:
    model = stirred_model(variant)
    model.get_parameter("layers.0.gate.weight").data[0, 0] = bad
    found = outliers(model, [text_batch()])
    assert (found.hidden.top1, found.hidden.median, found.layers[1].logits.top1) == (None, None, None)
    inside = look_inside(model, [text_batch()], answers=False)
    assert asdict(inside.outliers.hidden) == asdict(found.hidden)
    json.dumps(inside.to_dict(), allow_nan=False)


def test_without_windows_there_is_nothing_to_look_at() -> None:
    model = stirred_model("softmax")
    with pytest.raises(ValueError, match="no batch holds a window"):
        outliers(model, [])
    with pytest.raises(ValueError, match="no batch holds a window"):
        look_inside(model, [], answers=False)


def test_logits_hidden_states_and_first_tokens_of_a_model() -> None:
    model, batch = stirred_model("diff_v1"), text_batch()
    hidden: list[np.ndarray] = []
    hooks = [
        block.register_forward_hook(lambda _, __, output: hidden.append(output.detach().numpy()))
        for block in model.blocks()
    ]
    model(batch.tokens, batch.documents)
    for hook in hooks:
        hook.remove()
    found = outliers(model, [batch])
    logits = []
    for layer, maps in zip(found.layers, maps_of(model, batch), strict=True):
        mixer, x, where = model.captured(*batch[::2])[layer.layer]
        with torch.no_grad():
            pairs = mixer.logit_factors(x, where)
        products = [(q @ k.repeat_interleave(2, 1).mT).numpy().transpose(1, 0, 2, 3) for q, k in pairs]
        logits.append(np.concatenate([product[:, maps.visible].ravel() for product in products]))
        check(layer.logits, logits[-1])
        check(layer.hidden, hidden[layer.layer])
        size = [np.abs(row) for head in range(4) for row in maps.rows(maps.effective, head)]
        share = sum(row[0] for row in size) / sum(row.sum() for row in size)
        assert layer.first_token == pytest.approx(share, rel=1e-6)
    check(found.logits, np.concatenate(logits))
    check(found.hidden, np.stack(hidden))
    assert found.tokens == 60
    assert found.first_token == pytest.approx(np.mean([layer.first_token for layer in found.layers]))


@pytest.mark.parametrize(("layers", "places", "counted"), [(1, 3, 1), (1, 2, 0), (2, 2, 1), (0, 0, 0)])
def test_int8_channels_are_large_in_many_layers_and_places(layers: int, places: int, counted: int) -> None:
    """Four layers of 10 tokens: at least 1 layer and 2.4 of 40 places."""
    sums = OutlierSums(4)
    sums.tokens = 10
    for number in range(4):
        counts = torch.zeros(3, dtype=torch.int64)
        counts[1] = places if number < layers else 0
        sums.large[number] = counts
    assert sums._int8_channels() == counted


def test_hidden_states_of_six_count() -> None:
    model, batch = stirred_model("softmax"), text_batch()
    large = torch.zeros(2, 32, dtype=torch.float64)

    def count(block: torch.nn.Module, _: object, output: torch.Tensor) -> None:
        large[model.blocks().index(block)] = (output.abs() >= 6).double().mean((0, 1))  # pyright: ignore

    for block in model.blocks():
        block.register_forward_hook(count)
    with torch.no_grad():
        model.embedding.weight[:, 5] += 2.0
        model.embedding.weight[:, 7] -= 2.0
    model(batch.tokens, batch.documents)
    expected = int((((large > 0).double().mean(0) >= 0.25) & (large.mean(0) >= 0.06)).sum())
    assert outliers(model, [batch]).int8_channels == expected > 0


def test_both_ways_to_measure_agree_and_batches_do_not_matter() -> None:
    model, batch = stirred_model("diff_v1"), text_batch()
    apart = [Batch(*(part[row : row + 1] for part in batch)) for row in range(3)]
    alone = outliers(model, apart).to_dict()
    inside = look_inside(model, [batch], answers=False, hull_samples=0).outliers.to_dict()
    assert alone["hidden"]["top100"] == pytest.approx(inside["hidden"]["top100"])
    assert alone["logits"]["kurtosis"] == pytest.approx(inside["logits"]["kurtosis"])
    assert alone["logits"]["median"] == inside["logits"]["median"]
    assert alone["first_token"] == pytest.approx(inside["first_token"])


@pytest.mark.parametrize("variant", names())
def test_every_variant_has_outliers(variant: str) -> None:
    found = outliers(stirred_model(variant), [text_batch()])
    assert found.hidden.count == 2 * 60 * 32 and found.logits.top1 > 0
