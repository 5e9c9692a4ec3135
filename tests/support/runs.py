"""Plan folders as `diffattn compare` leaves them, written without training anything."""

import json
import math
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from support.found import found_inside, found_maps, found_outliers

ARMS = {
    "softmax": {"name": "softmax", "heads": 6, "head_dim": 16},
    "softmax_norm": {"name": "softmax", "heads": 6, "head_dim": 16, "norm": True},
    "diff_v1": {"name": "diff_v1", "heads": 3},
    "diff_v2": {"name": "diff_v2", "heads": 6, "kv_heads": 3},
}
FFN_WIDTH = {"softmax": 256, "softmax_norm": 256, "diff_v1": 256, "diff_v2": 236}
RATES = (2.5e-3, 5e-3, 1e-2, 2e-2)
LEAD = {"softmax": 0.0, "softmax_norm": -0.012, "diff_v1": 0.02, "diff_v2": -0.006}
SPEED = {"softmax": 14500.0, "softmax_norm": 13800.0, "diff_v1": 11200.0, "diff_v2": 9900.0}
SENTENCE = [
    "def",
    " read",
    "(",
    "self",
    ",",
    " name",
    ":",
    " str",
    ")",
    " ->",
    " bytes",
    ":",
    "\n",
    "return",
    " self",
    ".",
    "files",
    "[",
    "name",
    "]",
    ".",
    "read",
    "(",
    ")",
]


@dataclass(frozen=True)
class Story:
    """What happened in the plan's folder: runs are named (task, arm, seed) and concern the full budget."""

    tasks: tuple[str, ...] = ("recall", "text")
    seeds: tuple[int, ...] = (0, 1, 2)
    absent: frozenset[tuple[str, str, int]] = frozenset()
    unfinished: frozenset[tuple[str, str, int]] = frozenset()
    non_finite: frozenset[tuple[str, str, int]] = frozenset()
    diverged: frozenset[tuple[str, str, int]] = frozenset()
    """Finished with a finite loss that is far above all others."""
    failed_sweep: frozenset[tuple[str, str, int, float]] = frozenset()
    """Runs of a sweep (task, arm, seed, learning rate) whose loss was not finite."""
    names: dict[str, str] = field(default_factory=dict)
    """Other names for arms."""
    tokens: tuple[str, ...] = tuple(SENTENCE)
    mixing: dict[str, list[list[float]]] = field(default_factory=dict)
    """Matrices over the maps that arms have learned."""
    answers: bool = True
    """False: the data marks no answers."""
    started: bool = True
    """False: the plan is there, and no run."""


def write_plan(path: Path, story: Story | None = None) -> Path:
    """Write plan.json and the run folders of a story."""
    story = story or Story()
    plan = {
        "name": "quick",
        "description": "Recall, where attention decides, and a byte-level text screen.",
        "hash": "9f2c61d04e7ab853",
        "command": "diffattn compare quick",
        "tasks": [_task(name, story) for name in story.tasks],
    }
    path.mkdir(parents=True, exist_ok=True)
    (path / "plan.json").write_text(json.dumps(plan))
    for task in plan["tasks"] if story.started else []:
        for run in task["runs"]:
            arm = next(a for a in ARMS if story.names.get(a, a) == run["arm"])
            key = (task["name"], arm, run["seed"])
            full = run["budget"] == "full" and not run["sweep"]
            if not (full and key in story.absent):
                ending = "finished"
                if full and key in story.unfinished:
                    ending = "unfinished"
                if (full and key in story.non_finite) or (*key, run["learning_rate"]) in story.failed_sweep:
                    ending = "non-finite"
                _write_run(path / run["folder"], task, run, arm, ending, story)
    return path


def _task(name: str, story: Story) -> dict[str, Any]:
    text = name == "text"
    steps, batch_tokens = (350, 2048) if text else (300, 4096)
    chosen = {arm: 5e-3 if text or arm == "diff_v2" else 1e-2 for arm in ARMS}
    planned = [(arm, "full", seed, chosen[arm], False) for seed in story.seeds for arm in ARMS]
    if text:
        planned += [(arm, "quarter", seed, chosen[arm], False) for seed in story.seeds for arm in ARMS]
        planned += [("softmax", "ruler", seed, chosen["softmax"], False) for seed in story.seeds]
    else:
        planned += [(arm, "full", seed, rate, True) for seed in (100, 101) for rate in RATES for arm in ARMS]
    runs = []
    for arm, budget, seed, rate, sweep in planned:
        middle = "" if budget == "full" else f"-{budget}"
        folder = f"{name}-{arm}{middle}-lr{rate:g}-s{seed}"
        runs.append(
            {
                "folder": folder,
                "arm": story.names.get(arm, arm),
                "budget": budget,
                "seed": seed,
                "learning_rate": rate,
                "sweep": sweep,
            }
        )
    return {
        "name": name,
        "data": "Python 3.11.7 standard library, 11.9 MB, bytes" if text else "associative recall, 16 pairs, 32 keys",
        "metric": "loss" if text else "tokens_to_50",
        "unit": "nats" if text else "tokens",
        "lower_is_better": True,
        "baseline": story.names.get("softmax", "softmax"),
        "margin": None,
        "seeds": list(story.seeds),
        "learning_rate_policy": "one shared, untuned learning rate, 0.005"
        if text
        else "each arm at its best rate of a factor-2 grid, chosen on a seed of its own",
        "chosen": {story.names.get(arm, arm): rate for arm, rate in chosen.items()},
        "steps": steps,
        "tokens": steps * batch_tokens,
        "batch_tokens": batch_tokens,
        "context": 256 if text else 64,
        "bigram_loss": 2.495 if text else None,
        "arms": [_arm(arm, text, story) for arm in ARMS],
        "runs": runs,
    }


def _arm(arm: str, text: bool, story: Story) -> dict[str, Any]:
    parameters = 331_968 if text else 98_432
    other = parameters + {"softmax": 0, "softmax_norm": 96, "diff_v1": 288, "diff_v2": -1_152}[arm]
    algebra = 6 * other + (900_000 if text else 80_000)
    return {
        "name": story.names.get(arm, arm),
        "mixer": ARMS[arm],
        "note": "",
        "ffn_width": FFN_WIDTH[arm],
        "other_parameters": other,
        "embedding_parameters": 24_576 if text else 4_096,
        "mismatch_percent": 100 * (other - parameters) / parameters,
        "flops_algebra": algebra,
        "flops_executed": int(algebra * {"softmax": 1, "softmax_norm": 1, "diff_v1": 1.21, "diff_v2": 1.34}[arm]),
        "cache_bytes": 2304 if arm != "diff_v2" else 1152,
    }


def _write_run(folder: Path, task: dict[str, Any], run: dict[str, Any], arm: str, ending: str, story: Story) -> None:
    draw = random.Random(f"{task['name']} {arm} {run['budget']} {run['seed']} {run['learning_rate']}")
    rows = _metrics(task, run, arm, ending, draw)
    folder.mkdir(parents=True)
    lines = [json.dumps(row, sort_keys=True) + "\n" for row in rows]
    if ending == "unfinished":
        lines.append('{"kind":"train","st')
    (folder / "metrics.jsonl").write_text("".join(lines))
    small = task["name"] != "text"
    model = {
        "width": 64 if small else 96,
        "layers": 2 if small else 3,
        "context": task["context"],
        "token_shift": small,
    }
    (folder / "config.json").write_text(json.dumps({"model": model | {"mixer": ARMS[arm]}, "seed": run["seed"]}))
    (folder / "environment.json").write_text(json.dumps(_environment(run)))
    if ending == "unfinished":
        return
    last = [row for row in rows if row["kind"] == "eval"][-1]
    done = {"status": ending, "step": last["step"], "loss": last["loss"], "tokens": last["tokens"]}
    done |= {"seconds": last["machine"]["seconds"], "layer": None}
    if ending == "non-finite":
        done |= {"loss": None, "layer": "layers.1.mixer"}
    (folder / "done").write_text(json.dumps(done))
    diverged = run["budget"] == "full" and (task["name"], arm, run["seed"]) in story.diverged
    if ending == "finished":
        (folder / "evals").mkdir()
        for split in ("dev", "test") if not run["sweep"] else ("dev",):
            (folder / "evals" / f"{split}.json").write_text(json.dumps(_heldout(task, last, draw, 3.0 * diverged)))
        if run["budget"] == "full" and not run["sweep"]:
            (folder / "evals" / "maps.json").write_text(json.dumps(found_maps(arm, draw, story.tokens)))
            looked = (model["layers"], ARMS[arm]["heads"], arm.startswith("diff"), 900 * story.answers)
            inside = found_inside(draw, *looked, story.mixing.get(arm))
            (folder / "evals" / "inside.json").write_text(json.dumps(inside))


def _environment(run: dict[str, Any]) -> dict[str, Any]:
    return {
        "diffattn": "0.1.0",
        "torch": "2.13.0+cpu",
        "python": "3.11.7",
        "platform": "Linux-6.1-x86_64",
        "processor": "AMD EPYC 7B13",
        "cores": 2,
        "threads": 1,
        "precision": "float32",
        "command": f"diffattn train --from {run['folder']}/config.json",
        "peak_gflops": 92.4 + run["seed"],
    }


def _metrics(
    task: dict[str, Any], run: dict[str, Any], arm: str, ending: str, draw: random.Random
) -> list[dict[str, Any]]:
    share = {"full": 1.0, "quarter": 0.25, "ruler": 1.25}[run["budget"]]
    steps = int(task["steps"] * share)
    stop = {"finished": steps, "unfinished": steps // 2, "non-finite": steps // 3}[ending]
    speed = SPEED[arm] * draw.uniform(0.96, 1.04)
    flops = _arm(arm, task["name"] == "text", Story())["flops_algebra"]
    milestones = [round(steps * (i + 1) / 8) for i in range(8)]
    curve = (_text_curve if task["name"] == "text" else _recall_curve)(arm, run, draw, steps, share)
    rows: list[dict[str, Any]] = []
    for step in sorted({*range(10, stop + 1, 10), *(m for m in milestones if m <= stop)}):
        tokens = step * task["batch_tokens"]
        loss, accuracy = curve(step)
        common = {"step": step, "tokens": tokens, "flops": tokens * flops}
        if step % 10 == 0:
            machine = {"seconds": tokens / speed, "tokens_per_second": speed, "share_of_peak": 0.61}
            machine["peak_memory_bytes"] = 412_000_000 + int(draw.uniform(0, 9e6))
            rate = run["learning_rate"] * (1 - step / (steps + 1))
            rows.append(
                common | {"kind": "train", "loss": loss, "learning_rate": rate, "grad_norm": 0.8, "machine": machine}
            )
        if step in milestones:
            row = {"kind": "eval", "split": "dev", "loss": loss, "accuracy": accuracy, "count": 32768}
            row["bits_per_byte"] = loss / math.log(2) if task["name"] == "text" else None
            row["outliers"] = asdict(found_outliers(draw, 3, step / steps))
            rows.append(common | row | {"machine": {"seconds": tokens / speed}})
            rows.append(common | {"kind": "lambda", "layers": _lambdas(arm, step / steps, draw)})
    return rows


def _text_curve(arm: str, run: dict[str, Any], draw: random.Random, steps: int, share: float) -> Any:
    final = 1.75 * share**-0.11 + LEAD[arm] + draw.gauss(0, 0.015) + 0.02 * abs(math.log(run["learning_rate"] / 5e-3))

    def curve(step: int) -> tuple[float, float]:
        loss = final + (5.545 - final) * math.exp(-4.2 * (step / steps) ** 0.45) + draw.gauss(0, 0.004)
        return loss, 1 - loss / 3.6

    return curve


def _recall_curve(arm: str, run: dict[str, Any], draw: random.Random, steps: int, share: float) -> Any:
    middle = {"softmax": 190, "softmax_norm": 85, "diff_v1": 95, "diff_v2": 170}[arm] + draw.gauss(0, 30)
    middle *= 1 + 0.4 * abs(math.log2(run["learning_rate"] / 1e-2))
    if arm == "softmax" and run["seed"] == 2:
        middle = 2000.0

    def curve(step: int) -> tuple[float, float]:
        accuracy = 0.06 + 0.93 / (1 + math.exp(-(step - middle) / 14))
        return 3.2 * (1.02 - accuracy), accuracy

    return curve


def _lambdas(arm: str, progress: float, draw: random.Random) -> list[dict[str, float] | None]:
    if not arm.startswith("diff"):
        return [None, None, None]
    ends = (0.29, 0.55, 0.63) if arm == "diff_v1" else (-0.35, 0.38, 0.52)
    starts = (0.2, 0.36, 0.47) if arm == "diff_v1" else (0.5, 0.5, 0.5)
    settled = 1 - math.exp(-5 * progress)
    means = [a + (b - a) * settled + draw.gauss(0, 0.008) for a, b in zip(starts, ends, strict=True)]
    return [{"mean": m, "min": m - 0.1, "max": m + 0.1, "below_0": float(m < 0), "above_1": 0.0} for m in means]


def _heldout(task: dict[str, Any], last: dict[str, Any], draw: random.Random, extra: float) -> dict[str, Any]:
    loss = last["loss"] + draw.gauss(0, 0.003) + extra
    context = task["context"]
    text = task["name"] == "text"
    scored = [0.55 * math.exp(-i / 18) + loss * 0.97 + draw.gauss(0, 0.03) for i in range(context)]
    return {
        "loss": loss,
        "bits_per_byte": loss / math.log(2) if text else None,
        "count": 32768,
        "accuracy": last["accuracy"],
        "by_position": [x if text or i > 32 else None for i, x in enumerate(scored)],
        "recall_hits": {"loss": loss * 0.52 + draw.gauss(0, 0.01), "count": 21984 if text else 0},
        "other_tokens": {"loss": loss * 1.93 + draw.gauss(0, 0.02), "count": 10784 if text else 32768},
        "documents": [[loss * 900, 900], [loss * 400, 400]],
    }
