"""How should differential attention use torch's scaled_dot_product_attention where V is wider than Q and K?

    python benchmarks/sdpa_plans.py [--threads 1] [--seconds 3] [--json benchmarks/sdpa_plans.json]

Plans that compute the same thing in different calls; the first is ordinary attention of the same cost. They run in
turn, round after round in one process; shown are medians of milliseconds and of each round's ratio to the first.
Shapes are B, H, G, T, D with V of 2D; the answer is written down in ops/sdpa.py.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffattn.lab.bench import machine
from diffattn.lab.bench.contenders import FORMS, Form, Inputs, Shape
from diffattn.lab.bench.memory import call_of
from diffattn.lab.bench.ours import contenders
from diffattn.lab.bench.timing import interleaved

SHAPES = [
    *[(64, 2, 2, 32, 16), (64, 2, 2, 64, 16), (8, 4, 4, 64, 16), (16, 4, 4, 96, 16), (16, 4, 4, 128, 16)],
    *[(8, 3, 3, 256, 16), (4, 2, 2, 512, 32), (64, 4, 2, 64, 16), (8, 4, 2, 256, 16), (1, 4, 4, 1024, 64)],
]


def padded(x: Inputs) -> Tensor:
    """Q and K with zeros up to V's width."""
    q1, k1, q2, k2, v = x.two_maps()
    return call(x, pad(x, q1), pad(x, k1), v) - x.lam * call(x, pad(x, q2), pad(x, k2), v)


def padded_stacked(x: Inputs) -> Tensor:
    """The same in one call for both maps."""
    q1, k1, q2, k2, v = x.two_maps()
    q, k, v = pad(x, torch.cat((q1, q2), 1)), pad(x, torch.cat((k1, k2), 1)), torch.cat((v, v), 1)
    first, second = call(x, q, k, v).chunk(2, 1)
    return first - x.lam * second


def padded_repeated(x: Inputs) -> Tensor:
    """Padded, with keys and values repeated for the heads of a group."""
    q1, k1, q2, k2, v = x.two_maps()
    k1, k2, v = (y.repeat_interleave(q1.shape[1] // k1.shape[1], 1) for y in (pad(x, k1), pad(x, k2), v))
    return call(x, pad(x, q1), k1, v) - x.lam * call(x, pad(x, q2), k2, v)


def halves_stacked(x: Inputs) -> Tensor:
    """Both maps and both halves of V in one call."""
    q1, k1, q2, k2, v = x.two_maps()
    q, k = torch.cat((q1, q2, q1, q2), 1), torch.cat((k1, k2, k1, k2), 1)
    low, high = v.chunk(2, -1)
    a1, a2, b1, b2 = call(x, q, k, torch.cat((low, low, high, high), 1)).chunk(4, 1)
    return torch.cat((a1 - x.lam * a2, b1 - x.lam * b2), -1)


def call(x: Inputs, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scale = x.shape.width**-0.5
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def pad(x: Inputs, y: Tensor) -> Tensor:
    return F.pad(y, (0, x.shape.value_width - x.shape.width))


def plans(shape: Shape) -> dict[str, Form]:
    """By name; the first is what the ratios are to."""

    def plan(run: Callable[[Inputs], Tensor]) -> Form:
        return Form("", "", run, lambda x, backward: None)

    found = {
        "ordinary, 2H heads": FORMS["ordinary"],
        "wide V": FORMS["two_calls"],
        "half V twice": FORMS["four_calls"],
        "half V, stacked": plan(halves_stacked),
        "padded": plan(padded),
        "padded, stacked": plan(padded_stacked),
        "impl sdpa": contenders()["diff_attention:sdpa"],
        "impl reference": contenders()["diff_attention:reference"],
    }
    return found if shape.heads == shape.kv_heads else {**found, "padded, keys repeated": plan(padded_repeated)}


def measure(shape: Shape, backward: bool, seconds: float) -> dict[str, dict[str, float | None]]:
    """Milliseconds and ratio of each plan."""
    x = Inputs(shape, torch.float32, grad=backward)
    calls = {name: call_of(form, x, backward) for name, form in plans(shape).items()}
    for run in calls.values():
        run()
    timings = interleaved(calls, seconds, x.device)
    first = next(iter(calls))
    return {name: {"ms": 1e3 * timings.median(name), "ratio": timings.ratio(name, first)} for name in calls}


def main() -> None:
    """Print a table for each pass and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each shape and pass")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device("cpu")
    described = machine.describe(device, torch.float32, machine.measure_peak(device, torch.float32))
    print(f"{described['processor']}, {options.threads} thread(s), torch {torch.__version__}, float32")
    rows: list[dict[str, Any]] = []
    for backward in (False, True):
        print(f"\ncausal, {'forward and backward' if backward else 'forward'}")
        for B, H, G, T, D in SHAPES:
            shape = Shape(batch=B, heads=H, kv_heads=G, queries=T, keys=T, width=D, value_width=2 * D)
            found = measure(shape, backward, options.seconds)
            rows.append({"backward": backward, "shape": {"B": B, "H": H, "G": G, "T": T, "D": D}, "plans": found})
            print(f"  B={B} H={H} G={G} T={T} D={D}")
            for name, numbers in found.items():
                print(f"    {name:<24}{numbers['ms']:>10.2f} ms {numbers['ratio']:>7.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": described, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
