"""What a comparison costs: feed-forwards solved for equal parameters, FLOPs of a run, the speed of this machine."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from diffattn.model.config import ModelConfig
from diffattn.train.config import RunConfig

LEFT_ALONE_PERCENT = 0.5
"""A mismatch below this share of the parameters keeps the baseline's width, so that all other tensors stay equal."""


def match(model: ModelConfig, target: int) -> ModelConfig:
    """Give the model with the feed-forward, in steps of 1, whose non-embedding parameters come nearest to target.

    ValueError where the attention alone is larger than the target allows.
    """
    given = model.cost().other_parameters
    if abs(given - target) < target * LEFT_ALONE_PERCENT / 100:
        return model
    per_unit = replace(model, ffn_width=model.ffn_width + 1).cost().other_parameters - given
    width = model.ffn_width + round((target - given) / per_unit)
    if width < 1:
        raise ValueError(
            f"{model.mixer.name} cannot be matched to {target:,} parameters: with a feed-forward of width 1 it has "
            f"{replace(model, ffn_width=1).cost().other_parameters:,}; give it fewer heads or match='native'"
        )
    return replace(model, ffn_width=width)


def run_flops(run: RunConfig) -> float:
    """Executed FLOPs of one run: its training, and the forward passes of its evaluations."""
    train = run.train
    tokens = train.steps * train.sequences * run.model.context
    evaluated = (min(train.evals, train.steps) + 2) * (train.eval_tokens or 0)
    return run.model.cost().flops_executed * (tokens + evaluated / 3)


MEASURED_BELOW = 20_000_000
"""Parameters up to which a few real steps take no longer than a second or two."""
SHARE_OF_PEAK = 0.5
"""What training usually reaches of the fastest matrix product, where no step is measured."""
STEPS_SECONDS, MOST_SECONDS, FEWEST_STEPS = 1.0, 5.0, 5
"""Seconds of own time that the measured steps take together, and of any time; so many steps are measured at least."""


def measure_speed(run: RunConfig, threads: int) -> tuple[float, str]:
    """Executed FLOP/s of one process with `threads` threads on this machine, had it nothing else to do, and the way.

    A small model takes real steps on random tokens; for a large one it is a share of the fastest matrix product. What
    counts is the median step. On a CPU the clock is that of the calling thread, which takes part in all the work, so
    that what other programs take of the machine meanwhile is left out.
    """
    from diffattn.train.profile import choose_device, choose_precision, cpu_threads, peak_flops

    device = choose_device()
    with cpu_threads(threads):
        if run.model.cost().parameters > MEASURED_BELOW:
            peak = peak_flops(device, choose_precision("auto", device), threads)
            return SHARE_OF_PEAK * peak, f"guessed: {SHARE_OF_PEAK:.0%} of the fastest matrix product on this machine"
        step = _step(run)
        step()
        taken = _step_seconds(step, time.thread_time if device.type == "cpu" else time.perf_counter)
    flops = run.model.cost().flops_executed * run.train.batch_size * run.model.context
    return flops / statistics.median(taken), f"measured: the median of {len(taken)} steps of the baseline"


def _step_seconds(step: Callable[[], None], clock: Callable[[], float]) -> list[float]:
    taken: list[float] = []
    end = time.perf_counter() + MOST_SECONDS
    while len(taken) < FEWEST_STEPS or (sum(taken) < STEPS_SECONDS and time.perf_counter() < end):
        start = clock()
        step()
        taken.append(clock() - start)
    return taken


def _step(run: RunConfig) -> Callable[[], None]:
    """A training step of the run's model on random tokens: forward, backward, update."""
    import torch

    from diffattn.model.decoder import build
    from diffattn.ops.loss import cross_entropy
    from diffattn.train.profile import choose_device, choose_precision

    device = choose_device()
    dtype = choose_precision(run.train.precision, device)
    model = build(run.model, device=device)
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    shape = (run.train.batch_size, run.model.context)
    tokens = torch.randint(run.model.vocab_size, shape, device=device)

    def step() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            total, count = cross_entropy(model.hidden(tokens), model.head, tokens)
        (total / count).backward()
        optimiser.step()
        optimiser.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step
