"""Attention maps of a few heads on one passage, as numbers for the report."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diffattn.model.decoder import Decoder
from diffattn.variants.base import Branch

DIGITS = 4
"""Decimal places kept: more than a picture can show."""


@torch.no_grad()
def sentence_maps(
    model: Decoder, tokens: Tensor, labels: Sequence[str], heads: Sequence[tuple[int, int]] | None = None
) -> dict[str, Any]:
    """Give each chosen head's maps, one by one and combined, on a passage.

    tokens [T]; labels: T printable names; heads: (layer, output head) pairs, from 0; None: the first and the last head
    of the first, middle and last layer. A coefficient that differs from token to token is given as its mean.
    ValueError: a head that the model does not have, labels of another number than tokens.
    """
    if tokens.dim() != 1 or len(labels) != len(tokens):
        raise ValueError(f"tokens must be [T] with T labels; got {list(tokens.shape)} and {len(labels)} labels")
    captured = model.captured(tokens[None].to(model.head.device))
    last = len(captured) - 1
    chosen_layers = sorted({0, (last + 1) // 2, last}) if heads is None else sorted({layer for layer, _ in heads})
    if not set(chosen_layers) <= set(range(last + 1)):
        raise ValueError(f"heads names layers {chosen_layers}; the model has layers 0 to {last}")
    drawn: list[dict[str, Any]] = []
    for layer in chosen_layers:
        mixer, x, where = captured[layer]
        branches, effective = mixer.branches(x, where), mixer.maps(x, where)
        count = effective.shape[1]
        wanted = sorted({0, count - 1}) if heads is None else [head for at, head in heads if at == layer]
        for head in wanted:
            if not 0 <= head < count:
                raise ValueError(f"heads names head {head} of layer {layer}; the layer has heads 0 to {count - 1}")
            parts = [_branch(branch, head) for branch in branches]
            drawn.append({"layer": layer, "head": head, "branches": parts, "effective": _rounded(effective[0, head])})
    return {"tokens": list(labels), "heads": drawn}


def _branch(branch: Branch, head: int) -> dict[str, Any]:
    coefficient = branch.coefficient.expand(*branch.map.shape[:3], 1)[0, head].double().mean()
    return {"name": branch.name, "coefficient": round(float(coefficient), DIGITS), "map": _rounded(branch.map[0, head])}


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(value, DIGITS) for value in row] for row in values.double().tolist()]
