"""Where the attention of the answering position goes: to the answer, the first token, or the rest.

H output heads, T tokens. The answering position is the last one of the prompt, from which the answer's first token is
read. Every share is a sum over heads' rows of all samples, divided once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffattn.data.base import NOT_SCORED, Batch
from diffattn.evals.instruments import MOST_MAPS
from diffattn.evals.outputs import writing, written_norms
from diffattn.evals.reader import ModelReader
from diffattn.evals.seen import LONGEST, Layer, look
from diffattn.evals.sums import Sums, per_head
from diffattn.variants.base import Branch

DENOMINATORS = {
    "absolute": "sum of |entries| there / sum of |entries| of the row",
    "signed": "sum of the entries there / sum of |entries| of the row",
    "output": "sum of |entry| |v W_O| there / sum of |entry| |v W_O| of the row, entries of the effective map",
}
"""What the shares of a map, and of what it writes, divide by; the norm behind the map is in v as far as it has a
weight, while its factor of each row drops out."""


class Prompt(NamedTuple):
    """Ids that end at an answering position, and which of them are the answer's."""

    ids: list[int]
    answer: list[int]


def prompt_of(reader: ModelReader, text: str, answer: str, within: int) -> Prompt:
    """Encode a prompt and mark the tokens of a number wherever it stands in the first `within` characters."""
    ids, marked, begin = reader.encode(text), [], text.find(answer)
    while 0 <= begin < within:
        ends = (_common(ids, reader.encode(text[:end])) for end in (begin, begin + len(answer)))
        first, last = ends
        # A token that joins the number with what stands before or behind it is the answer's.
        marked += range(first, max(last, first + 1))
        begin = text.find(answer, begin + len(answer))
    return Prompt(ids, marked)


def _common(ids: Sequence[int], start: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(ids, start, strict=False)) if a != b), min(len(ids), len(start)))


def attention_to(reader: ModelReader, prompts: Iterable[Prompt]) -> list[dict[str, Any]]:
    """Look at each layer's maps, ready for JSON; prompts of more than 2048 tokens are left out.

    A layer: its maps ("A1", "A2", ..., "effective") with the shares of answer, first and rest, signed and absolute, and
    "output", the shares of what the effective map writes; None where W_O does not follow head by head. The model is not
    changed. No prompt of 2048 tokens or less: [].
    """
    layers = [_LayerShares() for _ in reader.model.blocks()]
    looked = 0
    for ids, answer in prompts:
        if len(ids) > LONGEST:
            continue
        tokens = torch.tensor([ids])
        seen = look(reader.model, Batch(tokens, torch.full_like(tokens, NOT_SCORED), torch.zeros_like(tokens)))
        for shares, layer in zip(layers, seen.layers, strict=True):
            shares.add(layer, answer)
        looked += 1
    return [{"layer": number, **shares.result()} for number, shares in enumerate(layers)] if looked else []


class _LayerShares:
    """Totals of one layer."""

    def __init__(self) -> None:
        self.maps: dict[str, Sums] = {}
        self.output: Sums | None = Sums()

    @torch.no_grad()
    def add(self, layer: Layer, answer: list[int]) -> None:
        branches = layer.mixer.branches(layer.x, layer.where)
        effective = sum((branch.coefficient * branch.map for branch in branches), branches[0].map.new_zeros(()))
        assert isinstance(effective, Tensor)
        named = branches if len(branches) <= MOST_MAPS else []
        whole = Branch("effective", effective.new_ones(()), effective)
        for branch in [*named, whole]:
            row = branch.map[0, :, -1]
            sums = self.maps.setdefault(branch.name, Sums())
            sums.add(**_grouped(row, answer, "signed"), **_grouped(row.abs(), answer, "absolute"))
            sums.add(
                coefficient=branch.coefficient.expand(*effective.shape[:3], 1)[0, :, -1, 0], rows=row.new_tensor(1)
            )
        path = writing(layer, effective)
        if path is None or self.output is None:
            self.output = None
            return
        values = path.values if path.weight is None else path.values * path.weight
        repeated = values.repeat_interleave(effective.shape[1] // values.shape[1], dim=1)
        written = effective[0, :, -1].abs() * written_norms(repeated, path.mixing)[0]
        self.output.add(**_grouped(written, answer, "absolute"))

    def result(self) -> dict[str, Any]:
        """Divide, once."""
        maps = [
            {
                "name": name,
                "coefficient": asdict(per_head(sums["coefficient"], sums["rows"])),
                **_shares(sums, ("signed", "absolute")),
            }
            for name, sums in self.maps.items()
        ]
        return {"maps": maps, "output": None if self.output is None else _shares(self.output, ("absolute",))}


def _grouped(row: Tensor, answer: list[int], sign: str) -> dict[str, Tensor]:
    """Sum a row [H, T] over the answer's keys, the first one, and the rest: [H] each."""
    there, first = row[:, answer].sum(-1), row[:, 0]
    return {f"answer_{sign}": there, f"first_{sign}": first, f"rest_{sign}": row.sum(-1) - there - first}


def _shares(sums: Sums, signs: Sequence[str]) -> dict[str, Any]:
    total = sum(sums[f"{part}_absolute"] for part in ("answer", "first", "rest"))
    assert isinstance(total, Tensor)
    return {
        part: {sign: asdict(per_head(sums[f"{part}_{sign}"], total)) for sign in signs}
        for part in ("answer", "first", "rest")
    }
