"""How fast the Triton kernels are on this machine, next to what they replace; a markdown table, and JSON in $OUT.

Ordinary attention is torch's own with 2 H heads of D and V of D: the same width, the same arithmetic. TFLOP/s count the
least work of differential attention (4 products of D for a query and key forward, 10 more backward) for every form,
so that they can be compared. The share is of the GPU's dense 16-bit peak where it is known, else of torch's matmul.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.testing import do_bench, do_bench_cudagraph

from diffattn.lab.bench.contenders import Inputs, Shape, flex, four_calls, ordinary, two_calls
from diffattn.ops import diff_attention
from diffattn.ops.triton import blocks

PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0}
"""Dense bfloat16 TFLOP/s by the maker's data sheets (SXM)."""
TOKENS, HEADS, DECODED = 32768, 16, 8
"""Queries of a batch, output heads, sequences that decode."""


def ours(x: Inputs) -> Tensor:
    shape = x.shape
    return diff_attention(*x.two_maps(), x.lam, is_causal=shape.is_causal, window=shape.window, impl="triton")


FORMS: dict[str, Callable[[Inputs], Tensor]] = {
    "triton": ours,
    "ordinary, 2H heads": ordinary,
    "two calls": two_calls,
    "four calls": four_calls,
    "FlexAttention": flex,
}


def plans() -> Iterator[tuple[str, Shape, tuple[str, ...]]]:
    """(pass, shape, forms), the most telling first: the time may be up before the end.

    FlexAttention compiles for half a minute for each shape, and takes part at two.
    """
    four = tuple(list(FORMS)[:4])
    for length in (8192, 2048, 32768, 4096, 16384):
        for width in (64, 128):
            size: dict[str, Any] = {"queries": length, "keys": length, "width": width, "value_width": 2 * width}
            shape = Shape(batch=max(1, TOKENS // length), heads=HEADS, kv_heads=HEADS, **size)
            for kind in ("forward", "forward + backward"):
                yield kind, shape, four
    for length in (32768, 4096, 16384, 2048, 8192):
        for width in (64, 128):
            size = {"queries": 1, "keys": length, "width": width, "value_width": 2 * width}
            yield "decode", Shape(batch=DECODED, heads=HEADS, kv_heads=HEADS, **size), four
    for width in (64, 128):
        size = {"queries": 8192, "keys": 8192, "width": width, "value_width": 2 * width}
        yield "forward + backward", Shape(batch=4, heads=HEADS, kv_heads=HEADS, **size), tuple(FORMS)


def milliseconds(kind: str, x: Inputs, form: Callable[[Inputs], Tensor]) -> float:
    """Median time of one call."""

    def call() -> None:
        if kind == "forward + backward":
            for leaf in x.leaves:
                leaf.grad = None
            x.backward(form(x))
        else:
            with torch.no_grad():
                form(x)

    call()
    if kind == "decode":
        # A step of decoding takes less time than its launches; those who care replay a CUDA graph.
        return do_bench_cudagraph(call, rep=50, return_mode="median")
    return do_bench(call, warmup=20, rep=100, return_mode="median")


def peak() -> tuple[str, float]:
    """What the shares are of: a name, TFLOP/s."""
    name = torch.cuda.get_device_name()
    known = next((value for key, value in PEAKS.items() if key in name), None)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    matmul = 2 * 8192**3 / do_bench(lambda: a @ a, rep=200, return_mode="median") / 1e9
    print(f"{name}, torch {torch.__version__}; the largest matmul runs at {matmul:.0f} TFLOP/s in bfloat16\n")
    return ("the data sheet's peak", known) if known else ("torch's largest matmul", matmul)


def measure(kind: str, shape: Shape, names: tuple[str, ...], top: float) -> list[dict[str, Any]]:
    """One row for each form, in the order given."""
    x = Inputs(shape, torch.bfloat16, "cuda", grad=kind == "forward + backward")
    flops = shape.flops * (3.5 if kind == "forward + backward" else 1)
    rows, own = [], None
    for name in names:
        row: dict[str, Any] = {"pass": kind, "D": shape.width, "keys": shape.keys, "batch": shape.batch, "form": name}
        try:
            row["ms"] = milliseconds(kind, x, FORMS[name])
        except Exception as error:  # One form that cannot run must not take the others' numbers with it.
            row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}" if str(error) else repr(error)
        else:
            own = row["ms"] if name == "triton" else own
            row["tflops"] = flops / row["ms"] / 1e9
            row["share"] = row["tflops"] / top
            row["triton / this"] = own / row["ms"] if own else None
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def line(row: dict[str, Any]) -> str:
    lead = f"| {row['pass']} | {row['D']} | {row['keys']} | {row['batch']} | {row['form']} |"
    if "failed" in row:
        return f"{lead} {row['failed']} | | | |"
    ratio = f"{row['triton / this']:.2f}" if row["triton / this"] else ""
    return f"{lead} {row['ms']:.3f} | {row['tflops']:.0f} | {row['share']:.0%} | {ratio} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300.0, help="no new shape is begun afterwards")
    seconds = parser.parse_args().seconds
    end = time.perf_counter() + seconds
    # Compiling takes most of the time here: three candidates for each kernel.
    blocks.MEASURED = 3
    base, top = peak()
    print(f"| pass | D | keys | batch | form | ms | TFLOP/s | share of {base} | triton / this |")
    print("| --- " * 9 + "|")
    rows: list[dict[str, Any]] = []
    for kind, shape, names in plans():
        if time.perf_counter() > end:
            print(f"\nThe {seconds:.0f} s are up; what follows in the plan was not measured.")
            break
        found = measure(kind, shape, names, top)
        print("\n".join(line(row) for row in found))
        rows += found
        if "OUT" in os.environ:
            report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "peak": top, "rows": rows}
            Path(os.environ["OUT"], "triton_timings.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
