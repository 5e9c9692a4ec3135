"""The verb bench: attention, a training step, decoding."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from diffattn.cli.arguments import first, nearest, parse

if TYPE_CHECKING:
    from diffattn.lab.bench.contenders import Shape
    from diffattn.lab.plan import Task

Dtype = Literal["float32", "bfloat16", "float16", "float64"]
LISTING = """\
  attention     every implementation and what torch alone offers, by length
  step          a training step of each arm of a recipe
  decode        one query against a long cache, and generation by each arm of a recipe"""


def bench(argv: list[str]) -> int:
    """Time attention, training steps and decoding on this machine, next to what torch alone offers."""
    subjects = {"attention": _attention, "step": _step, "decode": _decode}
    name, rest = first(argv, "bench", "SUBJECT", LISTING)
    if name not in subjects:
        raise ValueError(f"bench: there is no subject {name!r}{nearest(name, list(subjects))}\n{LISTING}")
    return parse(subjects[name], rest, f"bench {name}")


def _attention(
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096),
    passes: tuple[Literal["forward", "training"], ...] = ("forward", "training"),
    dtype: Dtype = "float32",
    batch: int = 1,
    heads: int = 4,
    kv_heads: int | None = None,
    width: int = 64,
    value_width: int | None = None,
    causal: bool = True,
    window: int | None = None,
    contenders: tuple[str, ...] = (),
    threads: int | None = None,
    seconds: float = 10.0,
    json: Path | None = None,
) -> int:
    """Times one call of the operators, all contenders in turn; errors are taken at the first length.

    Args:
        lengths: Tokens, as queries and as keys.
        passes: "forward", "training" (forward and backward), or both.
        dtype: Of the tensors.
        batch: Sequences.
        heads: Output heads.
        kv_heads: Key/value groups; as many as heads when left out.
        width: Of a query or key head, D.
        value_width: Of a value head, E; twice the width when left out.
        causal: Under the causal rule.
        window: Only the last so many keys.
        contenders: Only these, with (a) and (d): ordinary, formula, two_calls, four_calls, flex, attention:IMPL,
            diff_attention:IMPL.
        threads: CPU threads; torch's choice when left out.
        seconds: At most about so long for each length and pass, slow contenders aside.
        json: A file for everything measured.
    """
    import torch

    from diffattn.lab.bench import tables
    from diffattn.lab.bench.attention import bench_attention
    from diffattn.train.profile import choose_device, cpu_threads

    shape = _shape(batch, heads, kv_heads, width, value_width)
    shapes = [replace(shape, queries=length, keys=length, is_causal=causal, window=window) for length in lengths]
    printer = tables.Printer()
    with cpu_threads(threads):
        found = bench_attention(
            shapes, getattr(torch, dtype), passes, choose_device(), seconds, contenders, printer.attention
        )
    printer.machine(found["machine"])
    tables.write(found, json)
    return 0


def _step(
    recipe: str = "quick",
    task: str | None = None,
    arms: tuple[str, ...] = (),
    batch_size: int | None = None,
    context: int | None = None,
    threads: int | None = None,
    seconds: float = 20.0,
    json: Path | None = None,
) -> int:
    """Times whole training steps on random tokens, all arms in turn.

    Args:
        recipe: `diffattn info recipes` lists them.
        task: A task of the recipe; the first when left out.
        arms: Only these (the baseline always stays).
        batch_size: Sequences a step; the recipe's when left out, on a CPU fewer where a step would take long.
        context: Tokens of a sequence; the recipe's when left out.
        threads: CPU threads; torch's choice when left out.
        seconds: At most about so long, slow steps aside.
        json: A file for everything measured.
    """
    from diffattn.lab.bench import tables
    from diffattn.lab.bench.step import bench_step
    from diffattn.train.profile import choose_device, cpu_threads

    printer = tables.Printer()
    with cpu_threads(threads):
        found = bench_step(_task(recipe, task, arms, context), choose_device(), seconds, batch_size)
    printer.step(found)
    printer.machine(found["machine"])
    tables.write({"recipe": recipe, **found}, json)
    return 0


def _decode(
    keys: tuple[int, ...] = (512, 4096, 32768),
    dtype: Dtype = "float32",
    batch: int = 1,
    heads: int = 4,
    kv_heads: int | None = None,
    width: int = 64,
    value_width: int | None = None,
    contenders: tuple[str, ...] = (),
    recipe: str = "quick",
    task: str | None = None,
    arms: tuple[str, ...] = (),
    threads: int | None = None,
    seconds: float = 5.0,
    json: Path | None = None,
) -> int:
    """Times one query of each sequence against cached keys, all contenders in turn, then generation by a recipe's arms.

    Args:
        keys: Cached keys.
        dtype: Of the cache; generation is in float32.
        batch: Sequences.
        heads: Output heads.
        kv_heads: Key/value groups; as many as heads when left out.
        width: Of a query or key head, D.
        value_width: Of a value head, E; twice the width when left out.
        contenders: Only these, with (a) and (d); `diffattn bench attention --help` names them.
        recipe: Whose models generate; `diffattn info recipes` lists them.
        task: A task of the recipe; the first when left out.
        arms: Only these (the baseline always stays).
        threads: CPU threads; torch's choice when left out.
        seconds: At most about so long for each number of keys, and for generation.
        json: A file for everything measured.
    """
    import torch

    from diffattn.lab.bench import tables
    from diffattn.lab.bench.attention import bench_attention
    from diffattn.lab.bench.decode import bench_generation
    from diffattn.train.profile import choose_device, cpu_threads

    shape = _shape(batch, heads, kv_heads, width, value_width)
    shapes = [replace(shape, queries=1, keys=count) for count in keys]
    chosen = _task(recipe, task, arms, None)
    printer = tables.Printer()
    with cpu_threads(threads):
        device = choose_device()
        found = bench_attention(
            shapes, getattr(torch, dtype), ("forward",), device, seconds, contenders, printer.attention
        )
        generation = bench_generation(chosen, device, seconds, batch)
    printer.generation(generation)
    printer.machine(found["machine"])
    tables.write({**found, "recipe": recipe, "generation": generation}, json)
    return 0


def _shape(batch: int, heads: int, kv_heads: int | None, width: int, value_width: int | None) -> "Shape":
    """These sizes, the others as they are by default."""
    from diffattn.lab.bench.contenders import Shape

    groups, value_width = kv_heads or heads, value_width or 2 * width
    return Shape(batch=batch, heads=heads, kv_heads=groups, width=width, value_width=value_width)


def _task(recipe: str, name: str | None, arms: tuple[str, ...], context: int | None) -> "Task":
    from diffattn import recipes
    from diffattn.lab.plan import select

    tasks = {task.name: task for task in recipes.get(recipe).tasks}
    if name is not None and name not in tasks:
        raise ValueError(f"there is no task {name!r}{nearest(name, list(tasks))}; the recipe has {', '.join(tasks)}")
    task = tasks[name or next(iter(tasks))]
    task = select(task, arms) if arms else task
    return task if context is None else replace(task, model=replace(task.model, context=context))
