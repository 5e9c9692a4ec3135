"""`diffattn bench attention`, and the operator of `diffattn bench decode`: all contenders, shape after shape."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import Tensor

from diffattn.lab.bench import machine
from diffattn.lab.bench.contenders import Form, Inputs, Shape, formula, ordinary_formula
from diffattn.lab.bench.memory import call_of, peak_above_inputs
from diffattn.lab.bench.ours import contenders, is_ordinary
from diffattn.lab.bench.timing import Timings, interleaved

Pass = Literal["forward", "training"]
"""Training: forward and backward, with the gradients of q, k, v and lam."""


def bench_attention(
    shapes: list[Shape],
    dtype: torch.dtype,
    passes: Iterable[Pass],
    device: torch.device,
    seconds: float,
    only: tuple[str, ...] = (),
    say: Callable[[dict[str, Any]], None] = lambda table: None,
) -> dict[str, Any]:
    """Measure every contender in every shape and pass; at most about `seconds` of timing for each of these.

    Errors are taken in the first shape. `say` is given each table when it is complete.
    """
    peak = machine.measure_peak(device, dtype)
    forms, tables = contenders(only), []
    for number, shape in enumerate(shapes):
        for which in passes:
            table = _table(forms, shape, dtype, device, which == "training", seconds, peak, errors=number == 0)
            tables.append(table)
            say(table)
    return {"machine": machine.describe(device, dtype, peak), "tables": tables}


def _table(
    forms: dict[str, Form],
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    backward: bool,
    seconds: float,
    peak: machine.Peak,
    errors: bool,
) -> dict[str, Any]:
    x = Inputs(shape, dtype, device, grad=backward)
    runnable, missing = _runnable(forms, x, backward)
    timings = interleaved({name: call_of(forms[name], x, backward) for name in runnable}, seconds, device)
    wrong = _errors({name: forms[name] for name in runnable}, x, backward) if errors else {}
    memory, no_memory = peak_above_inputs(runnable, shape, dtype, device, backward)
    flops = shape.flops * (3 if backward else 1)
    rows = {}
    for name in runnable:
        speed = flops / timings.median(name)
        rows[name] = {
            "letter": forms[name].letter,
            "title": forms[name].title,
            **timed(timings, name),
            "tokens_per_second": shape.batch * shape.queries / timings.median(name),
            "gflops": speed / 1e9,
            **peak.shares(speed),
            "peak_memory_bytes": memory.get(name),
            "error": wrong.get(name),
        }
    rounds = {"rounds": timings.rounds, "disturbed": timings.disturbed, "quiet": timings.quiet}
    which = "training" if backward else "forward"
    if no_memory is not None:
        missing["peak memory"] = no_memory
    return {"shape": asdict(shape), "pass": which, "flops": flops, **rounds, "contenders": rows, "missing": missing}


def timed(timings: Timings, name: str) -> dict[str, Any]:
    """Milliseconds and ratios of a contender, for JSON."""
    return {
        "milliseconds": 1e3 * timings.median(name),
        "ratio_to_a": timings.ratio(name, "ordinary"),
        "ratio_to_d": timings.ratio(name, "four_calls"),
        "samples_milliseconds": [1e3 * seconds for seconds in timings.seconds[name]],
    }


def _runnable(forms: dict[str, Form], x: Inputs, backward: bool) -> tuple[list[str], dict[str, str]]:
    """Names of what has run once, and why the others cannot."""
    names, missing = [], {}
    for name, form in forms.items():
        reason = form.refuses(x, backward)
        if reason is None:
            try:
                call_of(form, x, backward)()
            except (ValueError, RuntimeError) as error:  # a refusal of ours; torch without a kernel or a compiler
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if reason is None:
            names.append(name)
        else:
            missing[name] = reason
    return names, missing


def _errors(forms: dict[str, Form], x: Inputs, backward: bool) -> dict[str, dict[str, float | None]]:
    """Of each result, and of the worst of its gradients, relative to float64 of the same numbers (2-norms)."""
    wide = x.in_double()
    truths = {one_map: _results(ordinary_formula if one_map else formula, wide, backward) for one_map in (True, False)}
    found = {}
    for name, form in forms.items():
        output, *gradients = (
            float((got.double() - truth).norm() / truth.norm())
            for got, truth in zip(_results(form.run, x, backward), truths[is_ordinary(name)], strict=True)
        )
        found[name] = {"output": output, "gradients": max(gradients) if gradients else None}
    return found


def _results(run: Callable[[Inputs], Tensor], x: Inputs, backward: bool) -> list[Tensor]:
    with torch.set_grad_enabled(backward):
        out = run(x)
    if not backward:
        return [out]
    for leaf in x.leaves:
        leaf.grad = None
    x.backward(out)
    return [out.detach(), *(leaf.grad for leaf in x.leaves if leaf.grad is not None)]
