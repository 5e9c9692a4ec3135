"""Whether the Triton kernels are right on this machine: results and gradients against float64.

In 16 bits they must be no worse than the form they replace, two calls of torch's own attention; in float32 they must
give the reference's digits. Each restriction is tried as well. `--device cpu --tokens 40` runs the same under
TRITON_INTERPRET=1, without bfloat16.
"""

import argparse
import sys
import time

import torch
from torch import Tensor

from diffattn.lab.bench.contenders import Inputs, Shape, formula, two_calls
from diffattn.ops import diff_attention
from diffattn.ops.triton import blocks
from support.kernel_cases import Case, assert_as_reference

NAMES = ("result", "q", "k", "v", "lam")
CLOSE = {"result": 1e-6, "q": 2e-6, "k": 2e-6, "v": 2e-6, "lam": 1e-5}
"""Float32: error allowed, relative in the norm. lam's gradient is a sum over everything that cancels."""
AS_GOOD = {"cuda": 1.1, "cpu": 2.0}
"""16 bits: times the error of two calls. On a GPU both are a handful of roundings in other places; torch's CPU kernel
keeps the weights' gradients in float32, and the kernels under the interpreter do not."""


def cases(tokens: int, device: str) -> dict[str, Case]:
    """Each restriction, grouped and shared keys, one map with a sink, a few queries on a cache."""
    keys = tokens + 13
    documents = (torch.arange(keys) * 3 // keys)[None]
    hidden = torch.rand(tokens, keys, generator=torch.Generator().manual_seed(0)) < 0.5
    everything = {
        "is_causal": True,
        "window": tokens // 2,
        "documents": documents,
        "key_lengths": torch.tensor([keys - 5]),
        "alibi": torch.tensor([0.5, 0.1]),
        "attn_mask": torch.zeros(tokens, keys).masked_fill(hidden, -torch.inf),
    }
    size = {"keys": keys, "width": 64, "value_width": 128, "dtype": torch.float16, "device": device}
    size_of_all = {**size, "queries": tokens}
    return {
        "every restriction": Case(**size_of_all, options=everything),
        "documents": Case(**size_of_all, options={"documents": documents, "is_causal": True}),
        "window": Case(**size_of_all, options={"window": tokens // 3, "is_causal": True}),
        "bool mask, shared keys": Case(**size_of_all, shared_keys=True, options={"attn_mask": ~hidden}),
        "one map with a sink": Case(**size_of_all, maps=1, sink=True, options={"is_causal": True}),
        "two queries on a cache": Case(**size, queries=2, options={"is_causal": True}),
    }


def measured(x: Inputs, out: Tensor) -> dict[str, Tensor]:
    """The result and all gradients of a form, in float64."""
    for leaf in x.leaves:
        leaf.grad = None
    x.backward(out)
    return {name: t.detach().double() for name, t in zip(NAMES, (out, *(x.grad for x in x.leaves)), strict=True)}


def errors(found: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    return {name: ((found[name] - truth[name]).norm() / truth[name].norm()).item() for name in NAMES}


def check_dtype(dtype: torch.dtype, shape: Shape, device: str) -> list[str]:
    """Prints the errors of one dtype and returns what is wrong."""
    x = Inputs(shape, dtype, device, grad=True)
    wide = x.in_double()
    truth = measured(wide, formula(wide))
    ours = errors(measured(x, diff_attention(*x.two_maps(), x.lam, is_causal=True, impl="triton")), truth)
    theirs = errors(measured(x, two_calls(x)), truth)
    label = f"{str(dtype)[6:]}, D = {shape.width}"
    wrong = []
    for name in NAMES:
        allowed = CLOSE[name] if dtype == torch.float32 else AS_GOOD[device] * theirs[name]
        print(f"| {label} | {name} | {ours[name]:.1e} | {theirs[name]:.1e} | {allowed:.1e} |")
        if not ours[name] <= allowed:
            wrong.append(f"{label}: {name} is off by {ours[name]:.1e}, allowed are {allowed:.1e}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=700)
    arguments = parser.parse_args()
    # Nothing is timed here: the first block sizes of each list will do.
    blocks.MEASURED = 1
    torch.backends.cuda.matmul.allow_tf32 = False
    start, wrong = time.perf_counter(), []
    print("| dtype and width | of | error | two calls | allowed |\n| --- | --- | --- | --- | --- |")
    for width in (64, 128) if arguments.device == "cuda" else (16,):
        shape = Shape(
            heads=4, kv_heads=2, queries=arguments.tokens, keys=arguments.tokens, width=width, value_width=2 * width
        )
        # 128 wide in float32 is one minute of compiling; the interpreter multiplies bfloat16 wrongly.
        narrow = [torch.float16, torch.bfloat16] if arguments.device == "cuda" else [torch.float16]
        for dtype in narrow if width == 128 else [torch.float32, *narrow]:
            wrong += check_dtype(dtype, shape, arguments.device)
    for name, case in cases(arguments.tokens, arguments.device).items():
        try:
            assert_as_reference(case, "triton")
            print(f"{name}: as the reference")
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    print(f"{time.perf_counter() - start:.0f} s")
    if wrong:
        sys.exit("\n".join(["WRONG:", *wrong]))


if __name__ == "__main__":
    main()
