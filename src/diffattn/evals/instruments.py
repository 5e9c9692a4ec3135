"""All instruments in one pass over held-out tokens: what evals/inside.json holds.

B windows, H heads, T tokens of a window. Maps of `TOKENS` tokens exist at a time; only totals are kept.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from diffattn.data.base import Batch
from diffattn.evals.agreement import PairSums, jensen_shannon
from diffattn.evals.allocation import MapSums
from diffattn.evals.gradients import GradientSums, logit_gradients
from diffattn.evals.inside import Inside, LamInside, LayerInside
from diffattn.evals.outliers import OutlierSums
from diffattn.evals.outputs import OutputSums, Writing, writing
from diffattn.evals.seen import TOKENS, Layer, Seen, chunks, look
from diffattn.evals.sums import numbers
from diffattn.model.decoder import Decoder
from diffattn.ops.reference import compute_dtype
from diffattn.variants.base import Branch, Mixer

MOST_MAPS = 3
"""Maps of a layer that are measured one by one; mixtures of more are measured as what comes out."""
PULLED = 4
"""Gradients are taken of the first of every so many times `TOKENS` tokens, as they nearly double a pass."""
HULL_SAMPLES = 200
"""Reads, spread over all layers, that a linear program is asked about."""


def look_inside(
    model: Decoder,
    batches: Iterable[Batch],
    *,
    answers: bool,
    hull_samples: int = HULL_SAMPLES,
    told: Callable[[int, int], None] = lambda done, count: None,
) -> Inside:
    """Measure a model on the tokens of the batches.

    answers: the scored targets are answers that stand earlier in their window, as in the synthetic tasks. hull_samples
    0: no linear programs (else scipy is needed). told: called with the windows behind and of all. The model is not
    changed; no training is running. ValueError: no windows, no scipy.
    """
    batches = list(chunks(batches))
    windows = sum(len(batch.tokens) for batch in batches)
    layers = [_LayerSums() for _ in model.blocks()]
    massive = OutlierSums(len(layers))
    tokens = marked = begun = 0
    for batch in batches:
        count, length = batch.tokens.shape
        pulled = begun * length // TOKENS % PULLED == 0
        seen = look(model, batch, answers=answers, gradients=pulled)
        places = _places(begun, begun + count, windows, length, -(-hull_samples // len(layers)))
        for number, (sums, layer) in enumerate(zip(layers, seen.layers, strict=True)):
            with torch.no_grad():
                factors = layer.mixer.logit_factors(layer.x, layer.where)
            effective = sums.add(layer, len(factors), seen, places)
            with torch.no_grad():
                massive.add(number, layer, factors, effective, seen.frame)
        begun, tokens = begun + count, tokens + count * length
        told(begun, windows)
        marked += int(seen.frame.rows.sum()) if answers else 0
    return Inside(
        tokens=tokens,
        windows=windows,
        answers=marked,
        layers=[sums.result(number) for number, sums in enumerate(layers)],
        outliers=massive.result(),
    )


class _LayerSums:
    """Totals of one layer."""

    def __init__(self) -> None:
        self.maps: dict[str, MapSums] = {}
        self.pulls: dict[str, GradientSums] = {}
        self.pair = PairSums()
        self.paired = False
        self.outputs: OutputSums | None = OutputSums()
        self.lam = _LamSums()
        self.mixing: Tensor | None = None

    def add(self, layer: Layer, own: int, seen: Seen, places: list[tuple[int, int, int]]) -> Tensor:
        """Take in one pass; gives the effective map [B, H, T, T].

        own: how many of the branches have logits; what a layer adds to its own maps, as a bracket does, has none.
        """
        branches, logits = _branches(layer)
        effective = sum((branch.coefficient * branch.map for branch in branches), branches[0].map.new_zeros(()))
        assert isinstance(effective, Tensor)
        named = branches if len(branches) <= MOST_MAPS else []
        with torch.no_grad():
            known = [Branch(branch.name, *(x.detach() for x in branch[1:])) for branch in named]
            whole = Branch("effective", effective.new_ones(()), effective.detach())
            # A single map is the effective one, unless a gate scales it, and measured once.
            single = len(known) == 1 and torch.equal(known[0].map, whole.map)
            entropies = [self._measure(branch, seen) for branch in (known if single else [*known, whole])]
            if [branch.name for branch in known[:2]] == ["A1", "A2"]:
                self._pair(known[:2], (entropies[0], entropies[1]), seen)
            self.lam.add(layer.mixer, layer.x)
            self.mixing = layer.mixer.mixing()
            path = self._write(layer, known, whole.map, seen, places)
        if path is not None and named and logits is not None:
            of_logits = logit_gradients([branch.map for branch in named[:own]], logits, effective, path.of_effective())
            for branch, gradient in zip(named[:own], of_logits, strict=True):
                self.pulls.setdefault(branch.name, GradientSums()).add(
                    branch.map.detach(), gradient, seen.frame.visible
                )
        return whole.map

    def _measure(self, branch: Branch, seen: Seen) -> Tensor:
        sums = self.maps.setdefault(branch.name, MapSums(branch.name))
        return sums.add(branch.map, branch.coefficient, seen.frame)

    def _pair(self, maps: Sequence[Branch], entropies: tuple[Tensor, Tensor], seen: Seen) -> None:
        self.paired = True
        first, second = maps
        self.pair.add(first.map, second.map, -second.coefficient, seen.frame)
        self.pair.add_divergence(jensen_shannon(first.map, second.map, entropies), seen.losses)

    def _write(
        self, layer: Layer, known: list[Branch], effective: Tensor, seen: Seen, places: list[tuple[int, int, int]]
    ) -> Writing | None:
        path = writing(layer, effective) if self.outputs is not None else None
        if path is None or self.outputs is None:
            self.outputs = None
            self.pulls = {}
            return None
        first = known[0].map if known else effective
        self.outputs.add(path, layer, first, effective, seen.frame)
        heads = effective.shape[1]
        chosen = [(window, number % heads, token) for number, window, token in places]
        if chosen:
            self.outputs.sample(path, seen.frame, chosen)
        return path

    def result(self, number: int) -> LayerInside:
        """Divide, once."""
        found = []
        for name, sums in self.maps.items():
            pull = self.pulls[name].result() if name in self.pulls else (None, None)
            found.append(sums.result(*pull))
        if len(found) == 1 and found[0].name != "effective":
            whole = found[0]
            found.append(replace(whole, name="effective", gradient_norm=None, gradient_by_weight=None))
        heads = len(found[-1].coefficient.heads)
        return LayerInside(
            layer=number,
            heads=heads,
            lam=self.lam.result(),
            maps=found,
            pair=self.pair.result() if self.paired else None,
            outputs=None if self.outputs is None else self.outputs.result(),
            mixing=None if self.mixing is None else [numbers(row) for row in self.mixing],
        )


class _LamSums:
    """Totals of λ over heads and, where it depends on them, tokens."""

    def __init__(self) -> None:
        self.count = 0
        self.sums = torch.zeros(3, dtype=torch.float64)
        self.least, self.most = (torch.tensor(edge, dtype=torch.float64) for edge in (math.inf, -math.inf))

    def add(self, mixer: Mixer, x: Tensor) -> None:
        lam = mixer.lam(x)
        if lam is None:
            return
        lam = lam.detach().double().cpu()
        self.count += lam.numel()
        self.sums += torch.stack((lam.sum(), (lam < 0).sum(), (lam > 1).sum()))
        self.least, self.most = self.least.minimum(lam.min()), self.most.maximum(lam.max())

    def result(self) -> LamInside | None:
        if not self.count:
            return None
        mean, below, above = self.sums / self.count
        return LamInside(*numbers(torch.stack((mean, self.least, self.most, below, above))))


def _branches(layer: Layer) -> tuple[list[Branch], Tensor | None]:
    """Give a layer's maps and, where gradients are wanted, the zeros [B, H, T, T] that were added to their logits."""
    heads = getattr(layer.mixer, "heads", None)
    if layer.gradient is None or heads is None or "attn_mask" in layer.mixer.refuses:
        with torch.no_grad():
            return layer.mixer.branches(layer.x, layer.where), None
    batch, tokens = layer.x.shape[:2]
    logits = torch.zeros(batch, heads, tokens, tokens, dtype=compute_dtype(layer.x.dtype), device=layer.x.device)
    logits.requires_grad_()
    return layer.mixer.branches(layer.x, replace(layer.where, attn_mask=logits)), logits


def _places(begin: int, end: int, windows: int, length: int, samples: int) -> list[tuple[int, int, int]]:
    """Of samples spread evenly over all tokens, give those in windows begin..end - 1: (number, window, token)."""
    rows = windows * length
    samples = min(samples, rows)
    chosen = [(number, (2 * number + 1) * rows // (2 * samples)) for number in range(samples)]
    return [(number, row // length - begin, row % length) for number, row in chosen if begin <= row // length < end]
