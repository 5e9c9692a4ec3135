"""How should differential attention use torch's scaled_dot_product_attention, and when is the plain formula faster?

    python benchmarks/sdpa_plans.py [--threads 1] [--rounds 9] [--json benchmarks/sdpa_plans.json]

Each question is a table of plans that compute the same thing. Plans run in turn, round after round in one process, so
that other load meets all of them; shown are the medians of milliseconds and of each round's ratio to the first plan.
Shapes are B, H, G, T, S, D with V of width 2D for version 1 and D for version 2 and ordinary attention. The answers
are written down in ops/sdpa.py and ops/dispatch.py.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from diffattn.ops import attention, diff_attention

LAM = 0.3
Plan = Callable[[], Tensor]
sdpa = F.scaled_dot_product_attention


class Inputs:
    """Projections as layers make them: [B, T, heads, width], read as [B, heads, T, width], heads paired adjacently."""

    def __init__(self, B: int, H: int, G: int, T: int, S: int, D: int, E: int, maps: int = 2, grad: bool = True):
        self.shape = (B, H, G, T, S, D)
        self.q = torch.randn(B, T, 2 * H, D, requires_grad=grad)
        self.k = torch.randn(B, S, maps * G, D, requires_grad=grad)
        self.v = torch.randn(B, S, G, E, requires_grad=grad)
        self.grouped = H != G

    def views(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        if k.shape[1] == v.shape[1]:
            return q[:, 0::2], k, q[:, 1::2], k, v
        return q[:, 0::2], k[:, 0::2], q[:, 1::2], k[:, 1::2], v


def version_1(x: Inputs) -> dict[str, Plan]:
    """Causal training. The first plan is ordinary attention of the same cost: 2H heads of D."""
    D = x.shape[-1]

    def wide() -> Tensor:
        q1, k1, q2, k2, v = x.views()
        return call(q1, k1, v) - LAM * call(q2, k2, v)

    def halves() -> Tensor:
        q1, k1, q2, k2, v = x.views()
        parts = v.split(D, -1)
        return torch.cat([call(q1, k1, part) - LAM * call(q2, k2, part) for part in parts], -1)

    def padded() -> Tensor:
        q1, k1, q2, k2, v = x.views()
        return call(pad(q1), pad(k1), v, D**-0.5) - LAM * call(pad(q2), pad(k2), v, D**-0.5)

    def padded_stacked() -> Tensor:
        q1, k1, q2, k2, v = x.views()
        q, k, v = pad(torch.cat((q1, q2), 1)), pad(torch.cat((k1, k2), 1)), torch.cat((v, v), 1)
        first, second = call(q, k, v, D**-0.5).chunk(2, 1)
        return first - LAM * second

    def halves_stacked() -> Tensor:
        q1, k1, q2, k2, v = x.views()
        q, k = torch.cat((q1, q2, q1, q2), 1), torch.cat((k1, k2, k1, k2), 1)
        low, high = v.split(D, -1)
        a1, a2, b1, b2 = call(q, k, torch.cat((low, low, high, high), 1)).chunk(4, 1)
        return torch.cat((a1 - LAM * a2, b1 - LAM * b2), -1)

    def padded_repeated() -> Tensor:
        q1, k1, q2, k2, v = x.views()
        share = q1.shape[1] // k1.shape[1]
        k1, k2, v = (y.repeat_interleave(share, 1) for y in (pad(k1), pad(k2), v))
        return call(pad(q1), k1, v, D**-0.5) - LAM * call(pad(q2), k2, v, D**-0.5)

    def call(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        return sdpa(q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1])

    def pad(y: Tensor) -> Tensor:
        return F.pad(y, (0, D))

    plans = {
        "ordinary, 2H heads": lambda: ordinary(x),
        "wide V": wide,
        "half V twice": halves,
        "half V, stacked": halves_stacked,
        "padded": padded,
        "padded, stacked": padded_stacked,
        "impl sdpa": lambda: diff_attention(*x.views(), LAM, is_causal=True, impl="sdpa"),
        "impl reference": lambda: diff_attention(*x.views(), LAM, is_causal=True, impl="reference"),
    }
    return {**plans, "padded, keys repeated": padded_repeated} if x.grouped else plans


def ordinary(x: Inputs) -> Tensor:
    q, k, v = (y.transpose(1, 2) for y in (x.q, x.k, x.v))
    v = v.unflatten(-1, (2, -1)).movedim(3, 2).flatten(1, 2) if v.shape[1] != k.shape[1] else v
    return sdpa(q, k, v, is_causal=q.shape[2] == k.shape[2], enable_gqa=x.grouped or q.shape[1] != k.shape[1])


def packed(x: Inputs) -> dict[str, Plan]:
    """Version 1 on two documents in a window: a mask is built and used."""
    B, T = x.shape[0], x.shape[3]
    documents = (torch.arange(T) >= T // 2).long().expand(B, T)
    run = {"is_causal": True, "documents": documents}
    return {name: lambda name=name: diff_attention(*x.views(), LAM, impl=name, **run) for name in ("sdpa", "reference")}


def version_2(x: Inputs) -> dict[str, Plan]:
    """One key for both maps, V of width D: is one call over 2H heads worth the stacking?"""
    H = x.shape[1]

    def stacked() -> Tensor:
        q1, k, q2, _, v = x.views()
        out = sdpa(torch.stack((q1, q2), 2).flatten(1, 2), k, v, is_causal=True, enable_gqa=True)
        return out.unflatten(1, (H, 2))[:, :, 0] - LAM * out.unflatten(1, (H, 2))[:, :, 1]

    return {
        "impl sdpa": lambda: diff_attention(*x.views(), LAM, is_causal=True, impl="sdpa"),
        "stacked": stacked,
        "impl reference": lambda: diff_attention(*x.views(), LAM, is_causal=True, impl="reference"),
    }


def plain(x: Inputs) -> dict[str, Plan]:
    """Ordinary causal attention of H heads."""

    def run(impl: str) -> Tensor:
        q1, k, _, _, v = x.views()
        return attention(q1, k, v, is_causal=True, impl=impl)

    return {"impl sdpa": lambda: run("sdpa"), "impl reference": lambda: run("reference")}


def decode(x: Inputs) -> dict[str, Plan]:
    """T new tokens against a static cache of S slots, without gradients."""
    B, D, S = x.shape[0], x.shape[-1], x.shape[4]
    lengths = torch.full((B,), S)

    def halves() -> Tensor:
        q1, k1, q2, k2, v = x.views()
        mask = torch.ones(B, 1, 1, S, dtype=torch.bool)
        low, high = (
            sdpa(q1, k1, part, mask, enable_gqa=True) - LAM * sdpa(q2, k2, part, mask, enable_gqa=True)
            for part in v.split(D, -1)
        )
        return torch.cat((low, high), -1)

    def run(impl: str) -> Tensor:
        return diff_attention(*x.views(), LAM, is_causal=True, key_lengths=lengths, impl=impl)

    return {"impl sdpa": lambda: run("sdpa"), "impl reference": lambda: run("reference"), "half V twice": halves}


def measure(plans: dict[str, Plan], rounds: int, backward: bool) -> dict[str, dict[str, float]]:
    """Median milliseconds of each plan, and the median over rounds of its time relative to the first plan."""
    times: dict[str, list[float]] = {name: [] for name in plans}
    for round_ in range(rounds + 1):
        for name, plan in plans.items():
            start = time.perf_counter()
            with torch.set_grad_enabled(backward):
                out = plan()
            if backward:
                out.backward(out.detach())
            if round_:
                times[name].append(1e3 * (time.perf_counter() - start))
    first = next(iter(times.values()))
    return {
        name: {
            "ms": round(statistics.median(row), 3),
            "ratio": round(statistics.median(a / b for a, b in zip(row, first, strict=True)), 3),
        }
        for name, row in times.items()
    }


def questions() -> list[tuple[str, Callable[[Inputs], dict[str, Plan]], bool, list[Inputs]]]:
    def shapes(*sizes: tuple[int, int, int, int, int], **options: int) -> list[Inputs]:
        return [Inputs(B, H, G, T, T, D, options.get("E", 2 * D), options.get("maps", 2)) for B, H, G, T, D in sizes]

    small = [(64, 2, 2, 32, 16), (64, 2, 2, 64, 16), (8, 4, 4, 64, 16), (16, 4, 4, 96, 16)]
    training = [*small, (16, 4, 4, 128, 16), (8, 3, 3, 256, 16), (4, 2, 2, 512, 32)]
    grouped = [(64, 4, 2, 64, 16), (8, 4, 2, 256, 16)]
    long = [(1, 4, 4, 1024, 64)]
    one_map = [(64, 4, 4, 64, 16), (16, 8, 8, 128, 16), (8, 6, 6, 256, 16)]
    caches = [
        (1, 4, 4, 1, 256, 32),
        (1, 4, 4, 16, 512, 32),
        (1, 4, 4, 1, 4096, 64),
        (8, 4, 2, 1, 512, 32),
        (1, 8, 2, 8, 4096, 64),
    ]
    cached = [Inputs(*size, 2 * size[-1], grad=False) for size in caches]
    return [
        ("version 1, causal, forward", version_1, False, shapes(*training, *grouped, *long)),
        ("version 1, causal, forward and backward", version_1, True, shapes(*training, *grouped, *long)),
        ("version 1, packed documents, forward and backward", packed, True, shapes(*training, *grouped)),
        ("version 2, causal, forward and backward", version_2, True, shapes(*grouped, E=16, maps=1)),
        ("ordinary attention, causal, forward and backward", plain, True, shapes(*one_map, E=16, maps=1)),
        ("version 1, decoding", decode, False, cached),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    machine = {"processor": processor(), "torch": torch.__version__, "threads": options.threads, "dtype": "float32"}
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    rows = []
    for question, plans, backward, inputs in questions():
        print(f"\n{question}")
        for x in inputs:
            found = measure(plans(x), options.rounds, backward)
            rows.append({"question": question, "shape": dict(zip("BHGTSD", x.shape, strict=True)), "plans": found})
            print("  " + " ".join(f"{key}={value}" for key, value in zip("BHGTSD", x.shape, strict=True)))
            for name, numbers in found.items():
                print(f"    {name:<24}{numbers['ms']:>10.2f} ms {numbers['ratio']:>7.2f}")
    options.json.write_text(json.dumps({"machine": machine, "rounds": options.rounds, "rows": rows}, indent=1) + "\n")


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].split(":", 1)[1].strip() if names else platform.processor()


if __name__ == "__main__":
    main()
