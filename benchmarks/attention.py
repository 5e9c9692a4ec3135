"""Which implementation is the fastest, and from which sizes on? What `impl="auto"` goes by.

    python benchmarks/attention.py [--threads 1] [--dtype float32] [--seconds 2] [--json FILE]

Causal calls of the sizes that small comparisons train, of longer ones, and of decoding; one row each, with the
milliseconds of the fastest implementation and the time of all relative to it, medians of interleaved rounds. For one
size in full, with what torch alone offers, memory and errors: `diffattn bench attention`.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from diffattn.lab.bench import machine
from diffattn.lab.bench.contenders import Inputs, Shape
from diffattn.lab.bench.memory import call_of
from diffattn.lab.bench.ours import ATTENTION, contenders
from diffattn.lab.bench.timing import interleaved

TRAINING = [  # B, H, G, T, D
    *[(64, 2, 2, 32, 16), (64, 2, 2, 64, 16), (16, 4, 4, 96, 16), (16, 4, 4, 128, 16), (4, 3, 3, 256, 16)],
    *[(64, 4, 2, 64, 16), (8, 4, 2, 256, 16), (4, 2, 2, 512, 32), (1, 6, 6, 1024, 64), (1, 4, 4, 1024, 128)],
]
DECODING = [  # B, H, G, T, S, D
    *[(1, 4, 4, 1, 256, 32), (1, 4, 4, 16, 512, 32), (8, 4, 2, 1, 512, 32)],
    *[(1, 4, 4, 1, 4096, 64), (1, 8, 2, 8, 4096, 64), (1, 8, 2, 64, 4096, 64)],
]


def main() -> None:
    """Print a table for each operator and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device, dtype = torch.device("cpu"), getattr(torch, options.dtype)
    described = machine.describe(device, dtype, machine.measure_peak(device, dtype))
    print(f"{described['processor']}, {options.threads} thread(s), torch {torch.__version__}, {options.dtype}")
    rows = []
    for prefix in ("diff_attention:", ATTENTION):
        print(f"\n{prefix[:-1]}")
        for shape, backward in cases():
            found = measure(prefix, shape, dtype, backward, options.seconds)
            rows.append({"operator": prefix[:-1], "shape": asdict(shape), "backward": backward, **found})
            show(shape, backward, found)
    if options.json:
        options.json.write_text(json.dumps({"machine": described, "rows": rows}, indent=1) + "\n")


def cases() -> list[tuple[Shape, bool]]:
    """Shapes, each without and with the backward pass where it is trained."""

    def shape(B: int, H: int, G: int, T: int, S: int, D: int) -> Shape:
        return Shape(batch=B, heads=H, kv_heads=G, queries=T, keys=S, width=D, value_width=2 * D)

    trained = [shape(B, H, G, T, T, D) for B, H, G, T, D in TRAINING]
    return [*((x, backward) for backward in (False, True) for x in trained), *((shape(*x), False) for x in DECODING)]


def measure(prefix: str, shape: Shape, dtype: torch.dtype, backward: bool, seconds: float) -> dict[str, Any]:
    """Milliseconds of each implementation that serves the call."""
    x = Inputs(shape, dtype, grad=backward)
    plans = {}
    for name, form in contenders().items():
        if name.startswith(prefix) and form.refuses(x, backward) is None:
            plan = call_of(form, x, backward)
            try:
                plan()
            except ValueError:  # an implementation that does not serve this call says so
                continue
            plans[name.removeprefix(prefix)] = plan
    timings = interleaved(plans, seconds, x.device)
    return {"milliseconds": {name: 1e3 * timings.median(name) for name in plans}, "quiet": timings.quiet}


def show(shape: Shape, backward: bool, found: dict[str, Any]) -> None:
    """One line."""
    times = found["milliseconds"]
    best = min(times.values())
    sizes = (shape.batch, shape.heads, shape.kv_heads, shape.queries, shape.keys, shape.width)
    letters = " ".join(f"{letter}={size:<4}" for letter, size in zip("BHGTSD", sizes, strict=True))
    ratios = "".join(f"  {name} {time / best:5.2f}" for name, time in times.items())
    print(f"  {letters} {'training' if backward else 'forward':<9}{best:>9.3f} ms{ratios}", flush=True)


if __name__ == "__main__":
    main()
