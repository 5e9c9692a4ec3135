"""Costs side by side, for a terminal: a column a model, bytes as GB of 10^9."""

from collections.abc import Callable, Sequence
from typing import Any

from diffattn.lab.cost import COUNTED, shares

Arm = dict[str, Any]
Row = tuple[str, Callable[[Arm], str]]


def as_text(found: dict[str, Any]) -> str:
    """Give the table, what its numbers count, and the sentences, of what `cost` found."""
    arms, setting = found["arms"], found["setting"]
    model = arms[0]["model"]
    tokens = f"{setting['batch_size']} x {model['context']} tokens"
    step = "A TRAINING STEP of " + f"{setting['accumulate']} x " * (setting["accumulate"] > 1) + tokens
    step += ", checkpointed" * setting["checkpoint_activations"]
    header = ["", *(arm["variant"] for arm in arms)], ["", *(arm["label"] for arm in arms)]
    table = [*header, *_rows(_model(), arms)]
    generation = f"GENERATION, {setting['batch_size']} rows of {model['context']} tokens"
    for title, mode, rows in ((step, "training", _training()), (generation, "inference", _inference())):
        table += [[f"{title}, {setting['precision']}"], *_rows(rows + _peak(mode, arms), arms)]
    lines = [*_aligned(table), "", *COUNTED, "", *found["sentences"]]
    if len(arms) > 1:
        lines.append(
            f"The columns of {found['share']:.0%} are of equal loss only where the published share holds "
            f"({found['share_source']}: 6.8 B for 11 B); `diffattn scaling` measures it."
        )
    return "\n".join(lines)


def _model() -> list[Row]:
    return [
        ("width x layers", lambda arm: f"{arm['model']['width']} x {arm['model']['layers']}"),
        ("output heads", lambda arm: str(arm["model"]["mixer"].get("heads", "-"))),
        ("feed-forward", lambda arm: str(arm["model"]["ffn_width"])),
        ("parameters", lambda arm: _count(arm["parameters"])),
        ("  of them embeddings", lambda arm: _count(arm["embedding_parameters"])),
        ("FLOPs a token, training, least", lambda arm: _count(arm["flops_per_token"]["training_least"])),
        ("  executed", lambda arm: _count(arm["flops_per_token"]["training_executed"])),
        ("FLOPs a token, inference, least", lambda arm: _count(arm["flops_per_token"]["inference_least"])),
        ("  executed", lambda arm: _count(arm["flops_per_token"]["inference_executed"])),
        ("cache a token, kB", lambda arm: f"{arm['cache_bytes_per_token'] / 1e3:.1f}"),
    ]


def _training() -> list[Row]:
    kinds = {"weights": "weights", "gradients": "gradients", "moments": "AdamW's moments", "activations": "kept"}
    return [_held("training", kind, f"  {title}, GB") for kind, title in kinds.items()]


def _inference() -> list[Row]:
    return [
        _held("inference", "weights", "  weights, GB"),
        _held("inference", "cache", "  key/value cache, GB"),
        ("  most at a further token, GB", lambda arm: _gigabytes(arm["inference"]["phase_peak_bytes"]["token"])),
    ]


def _held(mode: str, kind: str, title: str) -> Row:
    return title, lambda arm: _gigabytes(arm[mode]["held_bytes"].get(kind, 0))


def _peak(mode: str, arms: Sequence[Arm]) -> list[Row]:
    def part(name: str) -> Row:
        return f"    {name}", lambda arm: f"{shares(arm, mode)[name]:.0%}"

    return [
        ("  MOST AT ONE TIME, GB", lambda arm: _gigabytes(arm[mode]["peak_bytes"])),
        ("    of the baseline's", lambda arm: f"{arm[mode]['peak_bytes'] / arms[0][mode]['peak_bytes']:.0%}"),
        ("    reached in", lambda arm: arm[mode]["peak_in"]),
        *(part(name) for name in shares(arms[0], mode) if any(shares(arm, mode)[name] for arm in arms)),
    ]


def _rows(rows: list[Row], arms: Sequence[Arm]) -> list[list[str]]:
    return [[title, *(cell(arm) for arm in arms)] for title, cell in rows]


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3f}" if size < 1e10 else f"{size / 1e9:.1f}"


def _count(number: float) -> str:
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number:.0f}"


def _aligned(table: list[list[str]]) -> list[str]:
    full = [row for row in table if len(row) > 1]
    widths = [max(len(row[column]) for row in full) for column in range(len(full[0]))]
    return [
        row[0] if len(row) == 1 else "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in table
    ]
