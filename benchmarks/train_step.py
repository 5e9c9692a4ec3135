"""What is a training step made of, and what is left of it with the kernels of `ops/cpu`?

    python benchmarks/train_step.py [--threads 1] [--rounds 20] [--sizes text recall needle ab_124m] [--json FILE]

Every part of a step is run by itself, forward and backward, at the shapes of the size and as often as the model has it,
with torch's own functions ("before": no compiled kernel, the best attention on torch's) and with the kernels ("after").
The two take turns, round after round, in CPU seconds of this process, so that other load on the machine counts little;
shown are medians in milliseconds. "left" is the whole step less its parts: residual sums, views, autograd's and
Python's own work.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffattn.data import Batch, Data, open_data
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Block, Decoder, _shift, build
from diffattn.model.sizes import SIZES
from diffattn.ops.cpu import library
from diffattn.ops.loss import cross_entropy
from diffattn.ops.pointwise import rms_norm, swiglu
from diffattn.ops.positions import apply_rotary, rotary_tables
from diffattn.recipes.quick import quick
from diffattn.train import profile
from diffattn.train.optim import AdamW
from diffattn.variants.base import MixerConfig, Where

Work = Callable[[], Any]
HEADS = {"text": 6, "recall": 4, "needle": 4, "ab_124m": 12}


def main() -> None:
    """Print one table per size and arm, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sizes", nargs="+", choices=list(HEADS), default=["text", "recall", "needle"])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if library.KERNEL is None:
        parser.error(f"there is no compiled kernel to compare with: {library.UNAVAILABLE}")
    torch.set_num_threads(asked.threads)
    profile.keep_freed_memory()
    device = torch.device("cpu")
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "processor": profile.processor(device),
        "platform": platform.platform(),
        "threads": asked.threads,
        "rounds": asked.rounds,
    }
    for size in asked.sizes:
        for arm in ("softmax", "diff_v1"):
            found[f"{size}, {arm}"] = measured = measure(size, arm, asked.rounds)
            show(f"{size}, {arm}", measured)
        soft, v1 = (found[f"{size}, {arm}"]["after"]["step"] for arm in ("softmax", "diff_v1"))
        print(f"{size}: a step of diff_v1 takes {v1 / soft:.2f} x that of softmax")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def setting(size: str, arm: str, impl: str) -> tuple[Decoder, Callable[[int], Batch]]:
    """A model and where its batches come from; of ab_124m, 2 of its layers and 512 random tokens."""
    heads = HEADS[size] // (1 if arm == "softmax" else 2)
    mixer = MixerConfig.from_dict({"name": arm, "heads": heads, "impl": impl})
    if size == "ab_124m":
        config = replace(SIZES[size], mixer=mixer, context=512, layers=2)
        return build(config), lambda step: _random_batch(config, step)
    task = next(task for task in quick().tasks if task.name == size)
    data: Data = open_data(task.data, context=task.model.context, batch_size=task.train.batch_size, seed=0)
    return build(replace(task.model, vocab_size=data.vocab_size, mixer=mixer)), data.batch


def _random_batch(config: ModelConfig, step: int) -> Batch:
    drawn = torch.randint(config.vocab_size, (1, config.context + 1), generator=torch.Generator().manual_seed(step))
    return Batch(drawn[:, :-1], drawn[:, 1:], torch.zeros(1, config.context, dtype=torch.int64))


@contextmanager
def form(name: str) -> Iterator[None]:
    """Before: as on a machine without the kernel."""
    kernel = library.KERNEL
    if name == "before":
        library.KERNEL = None
    try:
        yield
    finally:
        library.KERNEL = kernel


def measure(size: str, arm: str, rounds: int) -> dict[str, dict[str, float]]:
    """Median CPU milliseconds of the step and of each part, before and after."""
    work: dict[str, dict[str, Work]] = {}
    for name, impl in (("before", "sdpa" if size in ("text", "ab_124m") else "reference"), ("after", "cpu")):
        model, batch = setting(size, arm, impl)
        work[name] = {"step": step_of(model, batch), **parts_of(model, batch)}
    taken: dict[str, dict[str, list[float]]] = {name: {part: [] for part in parts} for name, parts in work.items()}
    for turn in range(rounds + 2):  # the first two warm up
        for part in work["after"]:
            for name in work:
                with form(name):
                    start = time.process_time()
                    work[name][part]()
                    if turn > 1:
                        taken[name][part].append((time.process_time() - start) * 1e3)
    return {name: {part: statistics.median(times) for part, times in of.items()} for name, of in taken.items()}


def step_of(model: Decoder, batch: Callable[[int], Batch]) -> Work:
    """A step as train/trainer.py takes it."""
    optimizer, at = AdamW(model, betas=(0.9, 0.95), weight_decay=0.1), iter(range(10**9))

    def step() -> None:
        given = batch(next(at))
        total, count = cross_entropy(model.hidden(given.tokens, given.mixed), model.head, given.targets)
        (total / count).backward()
        optimizer.step(total.detach(), 1e-3, 1.0)

    return step


def parts_of(model: Decoder, batch: Callable[[int], Batch]) -> dict[str, Work]:
    """Each part by itself; the matrix products as the layers have them."""
    config, given = model.config, batch(0)
    rows, context = given.tokens.shape
    x = torch.randn(rows, context, config.width, requires_grad=True)
    inner = [torch.randn(rows, context, config.ffn_width, requires_grad=True) for _ in range(2)]
    block = model.blocks()[-1]
    linears = [module for module in block.modules() if isinstance(module, torch.nn.Linear)]
    inputs = [torch.randn(rows, context, linear.in_features, requires_grad=True) for linear in linears]
    weight, layers = torch.ones(config.width, requires_grad=True), config.layers
    trained = [torch.nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    twin = torch.nn.ParameterList(trained)
    optimizer = AdamW(twin, betas=(0.9, 0.95), weight_decay=0.1)

    def update() -> None:
        for parameter in trained:
            parameter.grad = parameter.detach()
        optimizer.step(torch.zeros(()), 1e-9, 1.0)

    def products() -> list[Tensor]:
        return [linear(y) for linear, y in zip(linears, inputs, strict=True)]

    found: dict[str, Work] = {
        "data": lambda: batch(0).mixed,
        "matrix products of the layers": times(
            layers, products, [*inputs, *(parameter for linear in linears for parameter in linear.parameters())]
        ),
        "attention": attention_of(block, layers, rows, context),
        "rotary": rotary_of(block, layers, rows, context),
        "RMSNorm": times(2 * layers + 1, lambda: [rms_norm(x, weight, config.norm_eps)], [x, weight]),
        "SwiGLU": times(layers, lambda: [swiglu(*inner)], inner),
        "output head and loss": times(1, lambda: [cross_entropy(x, model.head, given.targets)[0]], [x, model.head]),
        "clipping and AdamW": update,
    }
    if config.token_shift:
        found["token shift"] = times(layers, lambda: [_shift(x, None, None)], [x])
    return found


def times(count: int, forward: Callable[[], list[Tensor]], inputs: list[Tensor]) -> Work:
    """So many runs forward and backward, with gradients for the inputs."""
    along = [torch.ones_like(y) for y in forward()]

    def work() -> None:
        for _ in range(count):
            torch.autograd.grad(forward(), inputs, along, allow_unused=True)

    return work


def attention_of(block: Block, layers: int, rows: int, context: int) -> Work:
    """The mixer between its projections, without rotary: λ, the maps, the norm of each head."""
    mixer: Any = block.mixer
    q, k, v = (
        torch.randn(rows, context, count * width, requires_grad=True)
        for count, width in (
            (mixer.queries, mixer.head_dim),
            (mixer.keys, mixer.head_dim),
            (mixer.groups, mixer.value_dim),
        )
    )

    def split() -> tuple[Tensor, Tensor, Tensor]:
        counts = (mixer.queries, mixer.keys, mixer.groups)
        q_, k_, v_ = (y.unflatten(-1, (n, -1)).transpose(1, 2) for y, n in zip((q, k, v), counts, strict=True))
        return q_, k_, v_

    def forward() -> list[Tensor]:
        mixer.read, mixer.write = lambda *_: split(), lambda heads: heads.transpose(1, 2).flatten(2)
        try:
            return [mixer(q, Where())]
        finally:
            del mixer.read, mixer.write

    return times(layers, forward, [q, k, v, *block.mixer.parameters()])


def rotary_of(block: Block, layers: int, rows: int, context: int) -> Work:
    """Queries and keys of each layer."""
    mixer: Any = block.mixer
    cos, sin = rotary_tables(torch.arange(context), block.rotary_dim)
    inputs = [torch.randn(rows, context, n * mixer.head_dim, requires_grad=True) for n in (mixer.queries, mixer.keys)]

    def forward() -> list[Tensor]:
        return [apply_rotary(y.unflatten(-1, (-1, mixer.head_dim)).transpose(1, 2), cos, sin) for y in inputs]

    return times(layers, forward, inputs)


def show(title: str, found: dict[str, dict[str, float]]) -> None:
    """One row per part: milliseconds and share of the step, before and after."""
    print(f"\n{title:34s}{'before':>18s}{'after':>18s}")
    for of in found.values():
        of["left"] = of["step"] - sum(value for part, value in of.items() if part != "step")
    for part in found["after"]:
        cells = (f"{of[part]:9.2f} ({of[part] / of['step']:6.1%})" for of in found.values())
        print(f"{part:34s}" + "".join(f"{cell:>18s}" for cell in cells))


if __name__ == "__main__":
    main()
