"""plan.json: what was fixed before the first run, so that nothing can be changed after looking."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from diffattn.files import differences, write_json
from diffattn.lab.plan import SWEEP_SEED, Plan, Resolved, Task, resolve
from diffattn.lab.runs import Run
from diffattn.train.config import RunConfig

FILE = "plan.json"
UNTOLD = ("config", "task", "maps", "evals", "evals_limit")
"""Fields of a run that follow from its task."""
UNITS = {"loss": "nats", "tokens_to_50": "tokens"}


@dataclass(frozen=True)
class Surroundings:
    """What a task's data say of themselves, for captions."""

    data: str
    """One line: source, size, tokenizer."""
    bigram_loss: float | None = None
    """Nats per token of a smoothed bigram table; None for synthetic data."""


def plan_json(
    plan: Plan,
    ready: Plan,
    *,
    command: str,
    surroundings: Mapping[str, Surroundings],
    chosen: Mapping[str, Mapping[str, float]],
    runs: Iterable[Run],
) -> dict[str, Any]:
    """Everything the report needs to know of a plan, and the plan itself under "definition" with its hash.

    plan: as it was declared, and is hashed. ready: with the vocabulary that its data turned out to have.
    chosen: learning rates by task and arm, as far as they are known. runs: as far as they are known; the hash covers
    neither, since both follow from the definition and from the sweep's results on dev.
    """
    listed = list(runs)
    return {
        "name": plan.name,
        "description": plan.description,
        "question": plan.question,
        "limits": plan.limits,
        "across": list(plan.across),
        "hash": plan.hash(),
        "command": command or f"diffattn compare {plan.name}",
        "definition": plan.to_dict(),
        "tasks": [
            _task(task, surroundings[task.name], chosen.get(task.name, {}), [r for r in listed if r.task == task.name])
            for task in ready.tasks
        ],
    }


def write_plan(folder: Path, content: dict[str, Any]) -> None:
    """Write plan.json whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, content)


def read_plan(folder: Path) -> dict[str, Any] | None:
    """Read a folder's plan.json; None where there is none. ValueError: it is damaged, or written by something else."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        Plan.from_dict(content["definition"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a plan of this version ({error!r}); choose another folder with --out"
        ) from error
    return content


def refuse_another(plan: Plan, folder: Path) -> None:
    """Raise ValueError, naming what differs, where the folder holds runs of another plan."""
    before = read_plan(folder)
    if before is None or before["hash"] == plan.hash():
        return
    found = changes(before["definition"], plan)
    shown = "; ".join(found[:4]) + (f"; and {len(found) - 4} more" if len(found) > 4 else "")
    raise ValueError(
        f"{folder} holds runs of another plan: {shown}. A plan is fixed before its first run; give the new one its "
        f"own folder: --out {folder.with_name(folder.name + '-2')}"
    )


def changes(before: Plan | dict[str, Any], now: Plan) -> list[str]:
    """Say where two plans differ, as dotted paths with both values."""
    # Through JSON, so that a tuple here and a list there are the same.
    then, here = (json.loads(json.dumps(plan.to_dict() if isinstance(plan, Plan) else plan)) for plan in (before, now))
    return [f"{path} was {_short(old)}, is {_short(new)}" for path, old, new in differences(then, here)]


def learning_rate_policy(task: Task, chosen: Mapping[str, float]) -> str:
    """Say how the arms came to their learning rates, as the verdict's sentence ends."""
    if task.rates_from:
        return f"each arm's rate chosen on dev by {task.rates_from}, on other seeds"
    if task.rates_between:
        return f"rates between those chosen at {' and '.join(task.rates_between)}: {_rates(chosen)}"
    if not task.learning_rates:
        return f"one shared, untuned learning rate ({task.train.learning_rate:g})"
    seeds = range(SWEEP_SEED, SWEEP_SEED + task.sweep_seeds)
    listed = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    return (
        f"rates chosen on dev from the same factor-2 grid, on seed{'s' * (len(seeds) > 1)} {listed}: {_rates(chosen)}"
    )


def _rates(chosen: Mapping[str, float]) -> str:
    return ", ".join(f"{arm} {rate:g}" for arm, rate in chosen.items()) or "not chosen yet"


def base_words(task: Task) -> str:
    """Say what the runs start from, where a model is trained first."""
    tokens = task.base_steps * task.train.sequences * task.model.context
    at = f" at context {task.base_context}" if task.base_context else ""
    trained = f"trained on {tokens:,} tokens{at} before (rate {task.base_rate:g})"
    if task.shares_base:
        return f"every run of a seed continues one {task.baseline} model, {trained}, whose feed-forward it keeps"
    scaling = f", under {task.model.rope_scaling} scaling" if task.base_context and task.model.rope_factor > 1 else ""
    return f"every run continues its arm's own model of that seed, {trained}{scaling}"


def _task(task: Task, around: Surroundings, chosen: Mapping[str, float], runs: list[Run]) -> dict[str, Any]:
    batch_tokens = task.train.sequences * task.model.context
    policy = learning_rate_policy(task, chosen) + (f"; {base_words(task)}" if task.base_steps else "")
    return {
        "name": task.name,
        "data": around.data,
        "metric": task.metric,
        "unit": UNITS[task.metric],
        "lower_is_better": True,
        "baseline": task.baseline,
        "margin": task.margin,
        "seeds": list(range(task.first_seed, task.first_seed + task.seeds)),
        "learning_rate_policy": policy,
        "chosen": dict(chosen),
        "steps": task.train.steps,
        "tokens": task.train.steps * batch_tokens,
        "base_tokens": task.base_steps * batch_tokens,
        "batch_tokens": batch_tokens,
        "context": task.model.context,
        "bigram_loss": around.bigram_loss,
        "recorded_sd": task.recorded_sd,
        "recorded_sd_source": task.recorded_sd_source,
        "arms": list(_arms(task)),
        "contrasts": [contrast.to_dict() for contrast in task.contrasts],
        "evals": list(task.evals),
        "runs": [{key: value for key, value in asdict(run).items() if key not in UNTOLD} for run in runs],
    }


def _arms(task: Task) -> Iterator[dict[str, Any]]:
    own = sorted({name for arm in task.arms for name in arm.model})
    for name, resolved in resolve(task).items():
        arm, cost = resolved.arm, resolved.model.cost()
        by_layer = {str(layer): mixer.to_dict() for layer, mixer in arm.mixers_by_layer.items()}
        yield {
            "name": name,
            "mixer": arm.mixer.to_dict(),
            **({"mixers_by_layer": by_layer} if by_layer else {}),
            **({"settings": {name: getattr(resolved.model, name) for name in own}} if own else {}),
            "note": arm.note,
            "match": arm.match,
            "ffn_width": resolved.model.ffn_width,
            "other_parameters": cost.other_parameters,
            "embedding_parameters": cost.embedding_parameters,
            "mismatch_percent": resolved.mismatch_percent,
            "flops_algebra": cost.flops_algebra,
            "flops_executed": cost.flops_executed,
            "cache_bytes": cost.cache_bytes,
            "trained_parameters": _trained(task, resolved),
        }


def _trained(task: Task, resolved: Resolved) -> int:
    """Count the parameters that an arm trains; ValueError: it names some that are not there."""
    from diffattn.train.start import trained_parameters

    train = replace(task.train, train_only=resolved.arm.trains or task.train.train_only)
    return trained_parameters(RunConfig(model=resolved.model, data=task.data, train=train))


def _short(value: Any) -> str:
    text = "absent" if value in (None, "absent") else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
