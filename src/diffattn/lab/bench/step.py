"""`diffattn bench step`: a training step of every arm of a recipe, in turn."""

from collections.abc import Callable
from typing import Any

import torch

from diffattn.lab.bench import machine
from diffattn.lab.bench.timing import interleaved
from diffattn.lab.plan import Task, resolve
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import build
from diffattn.ops.loss import cross_entropy
from diffattn.train.config import TrainConfig
from diffattn.train.optim import AdamW
from diffattn.train.profile import choose_precision

STEP_FLOPS = 1e12
"""What a step on a CPU may cost where no batch size is asked for: some ten seconds on a core."""


def bench_step(task: Task, device: torch.device, seconds: float, batch_size: int | None = None) -> dict[str, Any]:
    """Time whole steps on random tokens at full context: forward, loss, backward, clipping and AdamW, uncompiled.

    batch_size: sequences a step; None: the task's, on a CPU so few that a step stays within `STEP_FLOPS`.
    """
    dtype = choose_precision(task.train.precision, device)
    peak = machine.measure_peak(device, dtype)
    models = {name: resolved.model for name, resolved in resolve(task).items()}
    sequences = batch_size or _affordable(task, models[task.baseline], device)
    steps = {name: training_step(model, task.train, sequences, device, dtype) for name, model in models.items()}
    for step in steps.values():
        step()
    timings = interleaved(steps, seconds, device)
    tokens, arms = sequences * task.model.context, {}
    for name, model in models.items():
        speed, cost = tokens / timings.median(name), model.cost()
        arms[name] = {
            "parameters": cost.parameters,
            "milliseconds": 1e3 * timings.median(name),
            "ratio_to_baseline": timings.ratio(name, task.baseline),
            "tokens_per_second": speed,
            "gflops": speed * cost.flops_algebra / 1e9,
            **peak.shares(speed * cost.flops_algebra),
            "samples_milliseconds": [1e3 * one for one in timings.seconds[name]],
        }
    sizes = {"batch_size": sequences, "context": task.model.context, "vocab_size": task.model.vocab_size}
    rounds = {"rounds": timings.rounds, "disturbed": timings.disturbed, "quiet": timings.quiet}
    described = machine.describe(device, dtype, peak)
    return {"machine": described, "task": task.name, "baseline": task.baseline, **sizes, **rounds, "arms": arms}


def training_step(
    config: ModelConfig, train: TrainConfig, sequences: int, device: torch.device, dtype: torch.dtype
) -> Callable[[], None]:
    """A step of the trainer on the same random tokens each time."""
    model = build(config, device=device)
    optimiser = AdamW(model, betas=train.betas, weight_decay=train.weight_decay)
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (sequences, config.context), generator=source).to(device)

    def step() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            total, count = cross_entropy(model.hidden(tokens), model.head, tokens)
        loss = total / count
        loss.backward()
        optimiser.step(loss.detach(), train.learning_rate, train.clip)

    return step


def _affordable(task: Task, baseline: ModelConfig, device: torch.device) -> int:
    if device.type != "cpu":
        return task.train.batch_size
    return max(1, min(task.train.batch_size, int(STEP_FLOPS / (baseline.cost().flops_algebra * baseline.context))))
