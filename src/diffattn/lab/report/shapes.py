"""What the files of a plan's folder must hold for the report to be drawn, and the check of it."""

from collections.abc import Mapping
from types import NoneType
from typing import Any

NUMBER = (int, float)
MAYBE = (int, float, NoneType)
WORDS = (str, NoneType)

ARM = {
    "name": str,
    "mixer": {"name": str},
    "note": str,
    "ffn_width": MAYBE,
    "other_parameters": NUMBER,
    "embedding_parameters": MAYBE,
    "mismatch_percent": NUMBER,
    "flops_algebra": MAYBE,
    "flops_executed": MAYBE,
    "cache_bytes": MAYBE,
    "trained_parameters?": MAYBE,
    "settings?": {},
}
CONTRAST = {"name": str, "first": [str], "second": [str], "lead": str, "under": [str]}
RUN = {"folder": str, "arm": str, "budget": str, "seed": int, "learning_rate": NUMBER, "sweep": bool}
TASK = {
    "runs": [RUN],
    "arms": [ARM],
    "name": str,
    "data": str,
    "metric": str,
    "unit": str,
    "lower_is_better": bool,
    "baseline": str,
    "margin": MAYBE,
    "seeds": [int],
    "learning_rate_policy": str,
    "chosen": {},
    "tokens": NUMBER,
    "context": NUMBER,
    "bigram_loss": MAYBE,
    "contrasts?": [CONTRAST],
    "evals?": [str],
}
PLAN = {
    "tasks": [TASK],
    "name": str,
    "description?": WORDS,
    "question?": WORDS,
    "limits?": WORDS,
    "across?": [str],
    "hash?": WORDS,
    "command?": WORDS,
}
CONFIG = {"model": {"layers": NUMBER, "width": NUMBER}}
ENVIRONMENT = {"command?": WORDS, "cores?": MAYBE, "threads?": MAYBE, "peak_gflops?": MAYBE}
DONE = {"status": str}
FINISHED = {"loss": NUMBER, "seconds": NUMBER}
PART = {"count": NUMBER, "loss": MAYBE}
KIND = {"name": str, "unit": str, "place": MAYBE, "count": NUMBER, "guess": NUMBER, "answers": {}}
HELDOUT = {
    "loss": NUMBER,
    "accuracy?": MAYBE,
    "bits_per_byte?": MAYBE,
    "by_position?": [MAYBE],
    "recall_hits?": PART,
    "other_tokens?": PART,
    "kinds?": [KIND],
}
BRANCH = {"name": str, "coefficient": NUMBER, "map": [[NUMBER]]}
MAPS = {"tokens": [str], "heads": [{"layer": int, "head": int, "branches": [BRANCH], "effective": [[NUMBER]]}]}
PER_HEAD = {"mean": MAYBE}
CURVE = {"mean": [MAYBE]}
SHARE = {"signed": PER_HEAD, "absolute": PER_HEAD}
MAP = {
    "name": str,
    "allocation": {"answer?": SHARE, "first": SHARE, "rest": SHARE},
    **dict.fromkeys(("negative_mass", "exact_zeros", "non_convex_rows", "effective_keys", "dead_keys"), PER_HEAD),
    **dict.fromkeys(("mass_by_distance", "sorted_mass"), CURVE),
    "head_cosine": [[MAYBE]],
    "gradient_norm?": PER_HEAD,
    "gradient_by_weight?": CURVE,
}
RELATION = ("cosine", "lam", "lam_least_squares", "r2", "r2_learned", "jensen_shannon", "js_loss_correlation")
PAIR = {**dict.fromkeys(RELATION, PER_HEAD), "js_by_loss": CURVE}
OUTPUTS = {
    **dict.fromkeys(("first_weight", "first_contribution", "relative_norm"), PER_HEAD),
    "signal_to_noise?": dict.fromkeys(("first_map", "effective", "normed"), PER_HEAD),
    "outside_hull?": PER_HEAD,
}
LAYER = {"layer": int, "maps": [MAP], "pair?": PAIR, "outputs?": OUTPUTS, "mixing?": [[NUMBER]]}
SPREAD = {**dict.fromkeys(("top1", "top10", "median"), MAYBE), "ratio?": MAYBE, "kurtosis?": MAYBE}
SPREADS = {"logits": SPREAD, "hidden": SPREAD}
OUTLIERS = {**SPREADS, "first_token?": MAYBE, "int8_channels": NUMBER, "layers": [SPREADS]}
INSIDE = {"tokens": NUMBER, "answers": NUMBER, "layers": [LAYER], "outliers": OUTLIERS}
"""The fields of `diffattn.evals.inside.Inside` that the report reads."""
MEASURE = {"value": NUMBER, "n": NUMBER}
LEVEL = {"shots": NUMBER, "accuracy": MEASURE, "log_loss": MEASURE}
PLACE = {**dict.fromkeys(("facts", "asked", "length", "depth"), NUMBER), "each": MEASURE, "chosen": MEASURE}
READING = {"scaling": str, "positions": [{"position": NUMBER, "loss": MEASURE}]}
PARTS: dict[str, dict[str, Any]] = {
    "needle": {"heat": [PLACE], "cells": {}},
    "many_shot": {"shots": [LEVEL], "chance": {"accuracy": NUMBER, "log_loss": NUMBER}},
    "long_context": {"lengths": [{"length": NUMBER, "scaling": str, "gain": MEASURE}], "cumulative": [READING]},
    "quantise": {"rounded": [{"what": str, "bits": NUMBER, "change": MEASURE}]},
}
"""What the report reads of a task's parts."""
ROW = {"kind": str}
ROWS: dict[str, dict[str, Any]] = {
    "train": {"machine": {"peak_memory_bytes?": MAYBE}},
    "eval": {
        "split": str,
        "step": NUMBER,
        "tokens": NUMBER,
        "loss": NUMBER,
        "accuracy": MAYBE,
        "machine": {"seconds": NUMBER},
        "outliers?": SPREADS,
    },
    "lambda": {"tokens": NUMBER, "layers": list},
}
"""Rows of metrics.jsonl by kind; rows of other kinds are not read."""


def kind(task: str) -> str:
    """The name under which a task's parts are known: all needles have the same."""
    return "needle" if task.startswith("needle") else task


def result(task: str) -> dict[str, Any]:
    """The shape of evals/<task>.json: what was found, or why nothing could be."""
    return {"failed?": str, "metric?": str, "measure?": MEASURE, "settings?": {}, "parts?": PARTS.get(kind(task), {})}


def fault(value: Any, shape: Any, place: str = "") -> str | None:
    """What is wrong with a JSON value, in words that follow the file's name; None: nothing.

    A shape is a type or a tuple of them, a list that holds the shape of all items, or an object's required keys; a key
    with a question mark may be missing or null.
    """
    if isinstance(shape, Mapping):
        return _fault_of_object(value, shape, place)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _unexpected(value, "a list", place)
        found = (fault(item, shape[0], f"{place}[{number}]") for number, item in enumerate(value))
        return next((words for words in found if words), None)
    types = shape if isinstance(shape, tuple) else (shape,)
    # JSON's true is no number, although Python's is.
    if isinstance(value, types) and (not isinstance(value, bool) or bool in types):
        return None
    return _unexpected(value, _NAMES[types[0]], place)


_NAMES = {int: "a number", str: "text", bool: "true or false", list: "a list"}


def _fault_of_object(value: Any, shape: Mapping[str, Any], place: str) -> str | None:
    if not isinstance(value, dict):
        return _unexpected(value, "an object", place)
    for key, inner in shape.items():
        name, optional = key.rstrip("?"), key.endswith("?")
        if name not in value and not optional:
            return f"lacks the key '{name}'" + (f" in {place}" if place else "")
        if optional and value.get(name) is None:
            continue
        words = fault(value[name], inner, f"{place}.{name}" if place else name)
        if words:
            return words
    return None


def _unexpected(value: Any, wanted: str, place: str) -> str:
    shown = repr(value)
    found = shown if len(shown) <= 40 else f"{shown[:40]}..."
    return f"holds {found} where {wanted} should be" + (f" ({place})" if place else "")
