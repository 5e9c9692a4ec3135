"""The verb cost: what a model needs, before there is one."""

import json
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import AvoidSubcommands, arg

from diffattn.cli.arguments import load_plugins, parse


def cost(argv: list[str]) -> int:
    """Parameters, FLOPs and memory of a baseline and of differential models of equal size and equal loss."""
    argv = load_plugins(argv)
    from diffattn.lab.footprint import Setting
    from diffattn.model.config import ModelConfig
    from diffattn.model.sizes import size

    named = argv.pop(0) if argv and not argv[0].startswith("-") else None
    preset, step = ModelConfig() if named is None else size(named), Setting()

    def run(
        model: ModelConfig = preset,
        setting: Annotated[Setting, arg(name="")] = step,
        variants: tuple[str, ...] = ("diff_v1",),
        share: float = 0.62,
        impl: Literal["auto", "reference", "sdpa", "blocked", "cpu"] = "auto",
        out: Path | None = None,
    ) -> int:
        """Prints what a model costs in training and in inference beside variants of it; nothing is allocated.

        Before these options: a size (`diffattn info sizes`; else a small default), --plugin my_attention.py (a variant
        of your own, also package.module). Large models take up to a minute each.

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
