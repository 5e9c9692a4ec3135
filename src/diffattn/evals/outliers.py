"""Massive values in logits and hidden states: the largest, the median, the tails, and LLM.int8()'s channels.

B windows, H heads, T tokens, W width. Values stream through; the k largest are exact, the median is a histogram's.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from diffattn.data.base import Batch
from diffattn.evals.inside import OUTLIER, FirstApart, LayerOutliers, Outliers, Spread
from diffattn.evals.seen import Frame, Layer, chunks, look
from diffattn.evals.sums import mean_of, numbers
from diffattn.model.decoder import Decoder
from diffattn.ops.reference import compute_dtype, grouped_product
from diffattn.variants.base import check_whole

Factors = Sequence[tuple[Tensor, Tensor]]
LARGEST = 100
FRACTION_BITS = 5
"""Of a float32 behind its exponent, kept by the histogram: 32 bins an octave."""
BINS = 1 << (8 + FRACTION_BITS)
INT8_LAYERS, INT8_PLACES = 0.25, 0.06


class SpreadSums:
    """Totals of |values|, and the largest so far."""

    def __init__(self) -> None:
        self.largest = torch.zeros(0, dtype=torch.float64)
        self.histogram = torch.zeros(BINS, dtype=torch.int64)
        self.moments = torch.zeros(4, dtype=torch.float64)
        self.count = 0

    def add(self, values: Tensor, count: int | None = None) -> None:
        """Take in values of any shape; where only `count` of them count, all others must be 0."""
        values = values.detach().to(compute_dtype(values.dtype))
        if not values.numel():
            return
        count = values.numel() if count is None else count
        self.count += count
        size = values.abs().flatten()
        floor = float(self.largest[-1]) if len(self.largest) == LARGEST else -1.0
        # What is not a number is no smaller than any, here and in topk.
        if not float(size.max()) <= floor:
            rivals = torch.cat((self.largest, size[~(size <= floor)].double().cpu()))
            self.largest = rivals.topk(min(LARGEST, len(rivals), self.count)).values
        bins = size.float().view(torch.int32) >> (23 - FRACTION_BITS)
        histogram = torch.bincount(bins, minlength=BINS).cpu()
        histogram[0] -= size.numel() - count
        self.histogram += histogram
        squares = values * values
        powers = (values, squares, squares * values, squares * squares)
        # Rows in their own precision, their sums in float64.
        self.moments += torch.stack([power.sum(-1).double().sum() for power in powers]).cpu()

    def merge(self, other: "SpreadSums") -> None:
        """Take in another's totals."""
        rivals = torch.cat((self.largest, other.largest))
        self.largest = rivals.topk(min(LARGEST, len(rivals))).values
        self.histogram += other.histogram
        self.moments += other.moments
        self.count += other.count

    def result(self) -> Spread:
        """Divide, once."""
        top = self.largest[torch.tensor([1, 2, 3, 10, 100]).clamp(max=len(self.largest)) - 1]
        m1, m2, m3, m4 = self.moments / self.count
        variance = m2 - m1**2
        fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
        rms = m2.sqrt()
        nothing = m2.new_tensor(torch.nan)
        ratio = top[0] / rms if rms.isfinite() else nothing
        kurtosis = fourth / variance**2 if variance > 1e-12 * m2 else nothing
        found = numbers(torch.stack((*top, self._median(), rms, ratio, kurtosis)))
        return Spread(*found, count=self.count)

    def _median(self) -> Tensor:
        """Middle of the bin that holds the middle value."""
        reached = self.histogram.cumsum(0)
        place = int(torch.searchsorted(reached, (self.count + 1) // 2))
        edges = torch.tensor([place, place + 1], dtype=torch.int32) << (23 - FRACTION_BITS)
        return edges.view(torch.float32).double().mean() * bool(place)


class ApartSums:
    """Totals of values at first tokens, and of all others."""

    def __init__(self) -> None:
        self.first, self.others = SpreadSums(), SpreadSums()

    def merge(self, other: "ApartSums") -> None:
        """Take in another's totals."""
        self.first.merge(other.first)
        self.others.merge(other.others)

    def together(self) -> Spread:
        """Divide both as one."""
        whole = SpreadSums()
        whole.merge(self.first)
        whole.merge(self.others)
        return whole.result()

    def result(self) -> FirstApart:
        """Divide each."""
        return FirstApart(self.first.result(), self.others.result() if self.others.count else None)


class OutlierSums:
    """Totals of one model."""

    def __init__(self, layers: int) -> None:
        self.logits = [ApartSums() for _ in range(layers)]
        self.hidden = [ApartSums() for _ in range(layers)]
        self.first = torch.zeros(layers, dtype=torch.float64)
        self.mass = torch.zeros(layers, dtype=torch.float64)
        self.large: list[Tensor | int] = [0] * layers
        self.tokens = 0

    def add(self, number: int, layer: Layer, factors: Factors, effective: Tensor, frame: Frame) -> None:
        """Take in what one layer showed, the factors of its logits, and its effective map [B, H, T, T]."""
        later = frame.visible.scatter(-1, frame.first, False)
        for q, k in factors:
            dtype = compute_dtype(q.dtype)
            logits = grouped_product(q.detach().to(dtype), k.detach().to(dtype).mT)
            self.logits[number].first.add(frame.at_first(logits))
            self.logits[number].others.add(logits.masked_fill(~later, 0.0), int(later.sum()) * logits.shape[1])
        begins = frame.first[:, 0, :, 0] == torch.arange(later.shape[-1], device=later.device)
        self.hidden[number].first.add(layer.hidden[begins])
        self.hidden[number].others.add(layer.hidden[~begins])
        size = effective.abs()
        self.first[number] += frame.at_first(size).double().sum().cpu()
        self.mass[number] += size.sum(-1).double().sum().cpu()
        self.large[number] = (layer.hidden.abs() >= OUTLIER).sum((0, 1)).cpu() + self.large[number]
        if number == 0:
            self.tokens += layer.x.shape[0] * layer.x.shape[1]

    def result(self) -> Outliers:
        """Divide, once."""
        shares = numbers(self.first / self.mass)
        layers = [
            LayerOutliers(
                layer=number,
                logits=logits.together(),
                hidden=hidden.together(),
                first_token=share,
                logits_apart=logits.result(),
                hidden_apart=hidden.result(),
            )
            for number, (logits, hidden, share) in enumerate(zip(self.logits, self.hidden, shares, strict=True))
        ]
        logits, hidden = ApartSums(), ApartSums()
        for whole, parts in ((logits, self.logits), (hidden, self.hidden)):
            for part in parts:
                whole.merge(part)
        return Outliers(
            tokens=self.tokens,
            logits=logits.together(),
            hidden=hidden.together(),
            first_token=mean_of(shares),
            int8_channels=self._int8_channels(),
            logits_apart=logits.result(),
            hidden_apart=hidden.result(),
            hidden_ratio=max((x for layer in layers if (x := layer.hidden.ratio) is not None), default=None),
            layers=layers,
        )

    def _int8_channels(self) -> int:
        large = torch.stack([torch.as_tensor(counts) for counts in self.large]).double()
        layers, places = (large > 0).double().mean(0), large.mean(0) / self.tokens
        return int(((layers >= INT8_LAYERS) & (places >= INT8_PLACES)).sum())


@torch.no_grad()
def outliers(model: Decoder, batches: Iterable[Batch], tokens: int | None = None) -> Outliers:
    """Measure the outliers of a model on the tokens of the batches, with its device and precision.

    tokens: on exactly so many, the first ones, since the largest of more values is larger; None: on all. ValueError: no
    windows, or fewer tokens.
    """
    sums = OutlierSums(model.config.layers)
    for batch in chunks(batches) if tokens is None else _first_tokens(batches, tokens):
        seen = look(model, batch)
        for number, layer in enumerate(seen.layers):
            factors = layer.mixer.logit_factors(layer.x, layer.where)
            sums.add(number, layer, factors, layer.mixer.maps(layer.x, layer.where), seen.frame)
    return sums.result()


def _first_tokens(batches: Iterable[Batch], tokens: int) -> Iterator[Batch]:
    """The windows that hold the first so many tokens, the last one cut."""
    check_whole("tokens", tokens, 1)
    left = tokens
    for batch in chunks(batches):
        count, length = batch.tokens.shape
        whole = min(count, left // length)
        left -= whole * length
        if whole:
            yield Batch(*(part[:whole] for part in batch))
        if whole < count and left:
            yield Batch(*(part[whole : whole + 1, :left] for part in batch))
            left = 0
        if not left:
            return
    raise ValueError(f"{tokens:,} tokens are needed, there are {tokens - left:,}; ask for at most so many")
