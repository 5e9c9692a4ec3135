"""The verb cost: what a model needs, before there is one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import AvoidSubcommands, arg

from diffattn.cli.arguments import load_plugins, nearest, parse

if TYPE_CHECKING:
    from diffattn.model.config import ModelConfig


def cost(argv: list[str]) -> int:
    """Parameters, FLOPs and memory of a baseline and of differential models of equal size and equal loss."""
    argv = load_plugins(argv)
    from diffattn.lab.footprint import Setting
    from diffattn.model.config import ModelConfig

    named = argv.pop(0) if argv and not argv[0].startswith("-") else None
    preset, step = ModelConfig() if named is None else _model(named), Setting()

    def run(
        model: ModelConfig = preset,
        setting: Annotated[Setting, arg(name="")] = step,
        variants: tuple[str, ...] = ("diff_v1",),
        share: float = 0.62,
        impl: Literal["auto", "reference", "sdpa", "blocked", "cpu"] = "auto",
        out: Path | None = None,
    ) -> int:
        """Prints what a model costs in training and in inference beside variants of it; nothing is allocated.

        Before these options: a size (`diffattn info sizes`) or a recipe (`diffattn info recipes`; the baseline of its
        first task), else a small default; --plugin my_attention.py (a variant of your own, also package.module). Large
        models take up to a minute each.

        Args:
            model: The baseline; model.context is the length of the sequences.
            setting: A training step and a generation.
            variants: Attentions beside it; `diffattn info variants` lists them.
            share: Of the baseline's parameters, at which a variant is thought to reach its loss (arXiv 2410.05258).
            impl: Implementation of the attention; reference holds whole maps, the others do not.
            out: Folder for cost.json, or a file that ends in .json.
        """
        from dataclasses import replace

        from diffattn.lab.cost import cost as count
        from diffattn.lab.cost_table import as_text

        by_layer = {layer: replace(mixer, impl=impl) for layer, mixer in model.mixers_by_layer.items()}
        baseline = replace(model, mixer=replace(model.mixer, impl=impl), mixers_by_layer=by_layer)
        found = count(baseline, variants, setting, share)
        print(as_text(found))
        if out is not None:
            file = out if out.suffix == ".json" else out / "cost.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return 0

    return parse(run, argv, "cost", config=(AvoidSubcommands,))


def _model(name: str) -> "ModelConfig":
    """The model of a size, or the baseline of a recipe's first task; ValueError with the nearest name for others."""
    from diffattn import recipes
    from diffattn.lab.plan import resolve
    from diffattn.model.sizes import SIZES

    if name in SIZES:
        return SIZES[name]
    if name in recipes.names():
        task = recipes.get(name).tasks[0]
        return resolve(task)[task.baseline].model
    known = [*SIZES, *recipes.names()]
    raise ValueError(
        f"{name!r} is neither a size nor a recipe{nearest(name, known)}; sizes: {', '.join(SIZES)}; recipes: "
        f"{', '.join(recipe for recipe in recipes.names() if recipe not in SIZES)}"
    )
