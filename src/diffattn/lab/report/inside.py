"""evals/inside.json -> what the report keeps of it: means over heads, layer by layer, and means of those over seeds."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from diffattn.lab.report.words import count

Json = dict[str, Any]
FIGURES = 6
"""Significant figures kept: more than a picture or a table shows."""


def condense(inside: Json) -> Json:
    """The file's fields, numbers of single heads replaced by the heads' mean, each layer's outliers with the layer."""
    found = _means(inside)
    for layer, outliers in zip(found["layers"], found["outliers"].pop("layers"), strict=True):
        layer["outliers"] = outliers
        for one in layer["maps"]:
            one["head_cosine"] = _off_diagonal(one["head_cosine"])
    return found


def layers(task: Json, arm: str) -> list[list[Json]]:
    """The condensed layers of every seed of an arm that was looked into."""
    return [seed["inside"]["layers"] for seed in task["arms"][arm]["seeds"].values() if seed["inside"]]


def arms(task: Json) -> list[str]:
    """The arms that were looked into, in the order of their colours."""
    names = [task["baseline"], *(name for name in task["arms"] if name != task["baseline"])]
    return [name for name in names if layers(task, name)]


def looked_into(task: Json) -> list[str]:
    """The seeds of which at least one arm was looked into."""
    found = {seed for arm in task["arms"].values() for seed, numbers in arm["seeds"].items() if numbers["inside"]}
    return sorted(found, key=int)


def marks_answers(task: Json) -> bool:
    """Whether the data says which keys hold an answer."""
    found = [numbers["inside"] for arm in task["arms"].values() for numbers in arm["seeds"].values()]
    return any(inside["answers"] for inside in found if inside)


def map_of(layer: Json, name: str) -> Any:
    """A map of a layer by name; None: it has none."""
    return next((one for one in layer["maps"] if one["name"] == name), None)


def inner(part: str, key: str) -> Callable[[Json], float | None]:
    """Picks a number out of a part of a layer; None where the layer has no such part."""
    return lambda layer: layer[part] and layer[part][key]


def by_layer(task: Json, arm: str, pick: Callable[[Json], float | None]) -> list[list[float]]:
    """A number of each layer, by seed; a seed is left out of a layer where it has none."""
    seeds = layers(task, arm)
    most = max((len(own) for own in seeds), default=0)
    return [[v for own in seeds if at < len(own) and (v := pick(own[at])) is not None] for at in range(most)]


def overall(task: Json, arm: str, pick: Callable[[Json], float | None]) -> float | None:
    """Mean of a number over layers and seeds."""
    return mean(value for seeds in by_layer(task, arm, pick) for value in seeds)


def curve(task: Json, arm: str, pick: Callable[[Json], list[float | None] | None]) -> list[float | None]:
    """Mean of a list of numbers over layers and seeds, place by place."""
    lists = [own for seed in layers(task, arm) for layer in seed if (own := pick(layer)) is not None]
    most = max((len(own) for own in lists), default=0)
    return [mean(v for own in lists if at < len(own) and (v := own[at]) is not None) for at in range(most)]


def mean(values: Iterable[float]) -> float | None:
    """The mean of those values; None of none."""
    found = list(values)
    return math.fsum(found) / len(found) if found else None


def inside_words(task: Json) -> str:
    """Say what was looked at, and that nothing rests on it."""
    found = [seed["inside"] for arm in task["arms"].values() for seed in arm["seeds"].values() if seed["inside"]]
    if not found:
        return "What the instruments find is known when runs have finished; λ is logged while they train."
    tokens, seeds = count(max(inside["tokens"] for inside in found)), looked_into(task)
    named = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
    return (
        f"What the instruments found in {len(found)} finished models ({named} of each arm), on {tokens} held-out "
        "tokens each. It describes these models: nothing here was tested, and no verdict rests on it. The effective "
        "map is what multiplies the values in the end: A1 − λ A2 where there are two maps."
    )


def _means(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"mean", "heads"}:
            return _means(value["mean"])
        return {key: _means(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_means(inner) for inner in value]
    return float(f"{value:.{FIGURES}g}") if isinstance(value, float) else value


def _off_diagonal(matrix: list[list[float | None]]) -> float | None:
    """Mean over pairs of different heads."""
    return mean(v for i, row in enumerate(matrix) for j, v in enumerate(row) if i != j and v is not None)
