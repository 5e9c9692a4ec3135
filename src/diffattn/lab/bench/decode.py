"""`diffattn bench decode`: one query against a long cache, and a model that writes."""

from typing import Any

import torch

from diffattn.lab.bench import machine
from diffattn.lab.bench.timing import interleaved
from diffattn.lab.plan import Task, resolve
from diffattn.model.decoder import build

PROMPT, NEW = 512, 32
"""Tokens of a prompt, and written after it; at most half and a quarter of the context."""


def bench_generation(task: Task, device: torch.device, seconds: float, batch: int = 1) -> dict[str, Any]:
    """Tokens per second of every arm of a task: of the prompt, and of new ones (greedy), the prompt taken off."""
    peak = machine.measure_peak(device, torch.float32)
    context = task.model.context
    prompt, new = max(1, min(PROMPT, context // 2)), max(1, min(NEW, context // 4))
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(task.model.vocab_size, (batch, prompt), generator=source).to(device)
    plans = {}
    for name, resolved in resolve(task).items():
        model = build(resolved.model, device=device).eval()
        plans[name, "prompt"] = lambda model=model: model.generate(tokens, max_new_tokens=1)
        plans[name, "whole"] = lambda model=model: model.generate(tokens, max_new_tokens=1 + new)
    named = {" ".join(key): plan for key, plan in plans.items()}
    for plan in named.values():
        plan()
    timings = interleaved(named, seconds, device)
    # What the new tokens alone take, round by round.
    alone = {
        name: [
            max(whole - first, 1e-9)
            for whole, first in zip(timings.seconds[f"{name} whole"], timings.seconds[f"{name} prompt"], strict=True)
        ]
        for name in (arm.name for arm in task.arms)
    }
    writing = type(timings)(alone, timings.rounds, timings.disturbed, timings.quiet)
    arms = {
        name: {
            "prompt_tokens_per_second": batch * prompt / timings.median(f"{name} prompt"),
            "tokens_per_second": batch * new / writing.median(name),
            "milliseconds_per_token": 1e3 * writing.median(name) / new,
            "ratio_to_baseline": writing.ratio(name, task.baseline),
        }
        for name in alone
    }
    sizes = {"batch": batch, "prompt": prompt, "new": new}
    rounds = {"rounds": timings.rounds, "disturbed": timings.disturbed, "quiet": timings.quiet}
    described = machine.describe(device, torch.float32, peak)
    return {"machine": described, "task": task.name, "baseline": task.baseline, **sizes, **rounds, "arms": arms}
