"""Numbers and settings in words, the same in page and text."""

import math
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]
MINUS = "−"


def nats(value: float | None, digits: int = 3) -> str:
    """A loss."""
    return "—" if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def signed(value: float | None, digits: int = 3) -> str:
    """A difference, with its sign."""
    return "—" if value is None else f"{value:+.{digits}f}".replace("-", MINUS)


def with_interval(mean: Json) -> str:
    """Mean and half-width of its 95 % interval."""
    if mean["mean"] is None:
        return "—"
    return nats(mean["mean"]) if mean["half_width"] is None else f"{nats(mean['mean'])} ± {nats(mean['half_width'])}"


def count(value: float | None) -> str:
    """A whole number with thin groups of three."""
    return "—" if value is None else f"{round(value):,}".replace(",", "\u202f")


def scaled(value: float | None, unit: str = "") -> str:
    """Three figures and an SI prefix: 2.1 M, 412 MB."""
    if value is None:
        return "—"
    for power, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * power:
            return f"{value / power:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}".strip()


def percent(value: float | None) -> str:
    """A signed share in percent."""
    return "—" if value is None else f"{signed(value, 2)} %"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds is None:
        return "—"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def rate(value: float | None) -> str:
    """A learning rate."""
    return "—" if value is None else f"{value:g}"


def mixer_words(mixer: Json) -> str:
    """An arm's attention: its variant and head counts."""
    named = [f"{key} {mixer[key]}" for key in ("heads", "kv_heads", "head_dim") if mixer.get(key) is not None]
    return ", ".join([mixer["name"], *named])


def model_words(plan: Json, model: Json) -> str:
    """The baseline's size, and what about the model changes results by itself."""
    baseline = next(arm for arm in plan["arms"] if arm["name"] == plan["baseline"])
    parts = [f"{scaled(baseline['other_parameters']).replace(' ', '')} non-embedding parameters"]
    if model:
        parts.append(f"{model['layers']} layers of width {model['width']}")
    parts.append(f"context {plan['context']}")
    if model.get("token_shift"):
        parts.append("token shift")
    return ", ".join(parts)


def hardware(environments: list[Json]) -> str:
    """The machines in words, for captions."""
    found = []
    for env in environments:
        name = f"{env.get('processor') or env.get('platform') or 'unknown processor'}, {_threads(env)}"
        words = f"{name}, {env['precision']}" if env.get("precision") else name
        if words not in found:
            found.append(words)
    return "; ".join(found)


def shared(runs: int) -> str:
    """What the seconds were measured beside."""
    beside = f"while up to {runs} runs shared the machine" if runs > 1 else "with one run at a time"
    return f"Measured {beside}; seconds vary with its load."


def status_words(report: Json) -> str:
    """How far the plan is."""
    runs = report["plan"]["runs"]
    parts = [f"{runs['ended']} of {runs['planned']} runs ended"]
    if runs["failed"]:
        parts.append(f"{runs['failed']} of them failed")
    if runs["ended"] < runs["planned"]:
        parts.append("still in progress: " + ", ".join(f"{n} {t['progress']}" for n, t in report["tasks"].items()))
    return "; ".join(parts)


def parted(finding: Json) -> tuple[str, str]:
    """A verdict's sentence in two: the claim, and what it is true of."""
    for stop in (". Against ", ". Per seed "):
        claim, found, conditions = finding["sentence"].partition(stop)
        if found:
            return f"{claim}.", found.removeprefix(". ") + conditions
    return finding["sentence"], ""


MANY = 5
"""Sentences from which on what all of them repeat is said once, below them."""


def claims(findings: Sequence[Json]) -> tuple[list[str], str]:
    """The claims of a task's arms, and apart from them, where there are many, how an arm of a screen is confirmed."""
    told = [parted(finding)[0] for finding in findings]
    step = "; `--confirm "
    if len(told) < MANY or step not in told[0]:
        return told, ""
    _, _, tail = told[0].partition(step)
    once = f"`--confirm ARM` repeats an arm on fresh seeds, at most four of them; one{tail.partition('`')[2]}"
    return [f"{claim.partition(step)[0].removesuffix('.')}." for claim in told], once


LEAST = 5e-4
"""Relative differences below this print as none."""
# What may differ although nobody compares it: key, name, and how it is known.
COSTS = (
    ("embedding_parameters", "embedding parameters", ""),
    ("flops_algebra", "FLOPs of the algebra", ""),
    ("flops_executed", "FLOPs executed", ""),
    ("cache_bytes", "cache", ""),
    ("tokens_per_second", "tokens/s", " as measured"),
)


def differences(arm: Json, baseline: Json) -> str:
    """In what an arm differs from the baseline although nobody is comparing it; empty for the baseline itself."""
    said = []
    if arm["ffn_width"] != baseline["ffn_width"]:
        said.append(f"FFN width {arm['ffn_width']} against {baseline['ffn_width']}")
    if arm["other_parameters"] != baseline["other_parameters"]:
        why = ", which are not matched on purpose" if arm.get("match") == "native" else ""
        said.append(f"non-embedding parameters {percent(arm['mismatch_percent'])}{why}")
    if _frozen(arm):
        share = f"{count(arm['trained_parameters'])} of {count(_parameters(arm))}"
        said.append(f"{share} parameters trained (FLOPs count as if all were)")
    if arm["learning_rate"] != baseline["learning_rate"]:
        said.append(f"learning rate {rate(arm['learning_rate'])} against {rate(baseline['learning_rate'])}")
    own, shared = arm.get("settings", {}), baseline.get("settings", {})
    said += [f"{name} {value} against {shared[name]}" for name, value in own.items() if value != shared[name]]
    ratios = ((name, end, _ratio(arm, baseline, key)) for key, name, end in COSTS)
    said += [
        f"{name} × {_times(ratio)}{end}" for name, end, ratio in ratios if ratio is not None and abs(ratio - 1) >= LEAST
    ]
    return ", ".join(said)


def inequalities(arms: Json, baseline: str) -> str:
    """What was not equal over all arms, short enough to end a sentence with."""
    base, others = arms[baseline], [arm for name, arm in arms.items() if name != baseline]
    said = []
    if any(arm["other_parameters"] != base["other_parameters"] for arm in others):
        worst = max((arm["mismatch_percent"] for arm in others), key=abs)
        said.append(f"parameters by up to {percent(worst)}")
    if any(_frozen(arm) for arm in others):
        said.append("the share of the parameters that is trained")
    if any(arm["learning_rate"] != base["learning_rate"] for arm in others):
        said.append("learning rates")
    for name, value in base.get("settings", {}).items():
        said += [name] * any(arm["settings"][name] != value for arm in others)
    for key, name, end in COSTS:
        ratios = [ratio for arm in others if (ratio := _ratio(arm, base, key)) is not None]
        low, high = min(ratios, default=1), max(ratios, default=1)
        if max(abs(low - 1), abs(high - 1)) >= LEAST:
            said.append(
                f"{name} × {_times(low)}" + ("" if _times(low) == _times(high) else f" to {_times(high)}") + end
            )
    return ", ".join(said) or "nothing that was measured"


def _parameters(arm: Json) -> int:
    return arm["other_parameters"] + (arm["embedding_parameters"] or 0)


def _frozen(arm: Json) -> bool:
    """Whether some of the arm's parameters are not trained."""
    return arm.get("trained_parameters") is not None and arm["trained_parameters"] < _parameters(arm)


def _ratio(arm: Json, baseline: Json, key: str) -> float | None:
    return arm[key] / baseline[key] if arm[key] and baseline[key] else None


def _times(ratio: float) -> str:
    return f"{ratio:.3f}" if math.isclose(ratio, 1, abs_tol=0.02) else f"{ratio:.2f}"


def _threads(env: Json) -> str:
    threads = env.get("threads")
    return f"{threads} thread{'s' if threads != 1 else ''}" if threads else f"{env.get('cores', '?')} cores"
