"""The verbs of one model: train, generate."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import AvoidSubcommands, Positional, arg

from diffattn.cli.arguments import load_plugins, nearest, parse, take

if TYPE_CHECKING:
    from diffattn.train.config import RunConfig

TASKS = ("recall", "induction", "needle", "needle_small", "many_shot_small", "hallucination_small", "unlearn")


def train(argv: list[str]) -> int:
    """Train one model: `--variant NAME` chooses the attention, `--from config.json` repeats a run."""
    from diffattn import variants
    from diffattn.data import TextData, data_from_dict, open_data
    from diffattn.model.config import ModelConfig
    from diffattn.train.config import RunConfig, TrainConfig
    from diffattn.train.trainer import train as train_run

    argv, chosen = take(load_plugins(argv), "--from", "--variant", "--task")
    preset = RunConfig(model=ModelConfig(), data=TextData(), train=TrainConfig())
    if path := chosen["--from"]:
        preset = _read_config(Path(path))
    if name := chosen["--variant"]:
        preset = replace(preset, model=replace(preset.model, mixer=variants.get(name)()))
    if task := chosen["--task"]:
        if task not in TASKS:
            raise ValueError(f"unknown task {task!r}{nearest(task, list(TASKS))}; there are {', '.join(TASKS)}")
        preset = replace(preset, data=data_from_dict({"kind": "synthetic", "task": task}))

    def run(config: Annotated[RunConfig, arg(name="")] = preset, out: Path = Path("runs/train")) -> int:
        """Trains one model into a run folder; the same command goes on where a stopped run ended.

        Before these options: --variant NAME (the attention; `diffattn info variants`), --task NAME (instead of text:
        recall, induction, needle, needle_small, many_shot_small, hallucination_small, unlearn), --from config.json (a
        run again, into its own --out), --plugin my_attention.py (a variant of your own, also package.module). The
        vocabulary is the data's, unless --from names a whole config.

        Args:
            config: What to train, and how.
            out: The run folder.
        """
        if not chosen["--from"]:
            data = open_data(config.data, context=config.model.context, batch_size=1, seed=config.seed)
            config = replace(config, model=replace(config.model, vocab_size=data.vocab_size))
        outcome = train_run(config, out)
        print(out / "model" if outcome.status == "finished" else out)
        return 0 if outcome.status == "finished" else 1

    return parse(run, argv, "train", config=(AvoidSubcommands,))


def _read_config(path: Path) -> "RunConfig":
    from diffattn.train.config import RunConfig

    try:
        return RunConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not the config.json of a run: {error}") from error


def generate(argv: list[str]) -> int:
    """Continue a text with a model folder."""

    def run(
        model: Annotated[Path, Positional, arg(metavar="MODEL")],
        prompt: str,
        max_new_tokens: int = 100,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int = 0,
    ) -> int:
        """Prints the prompt and its continuation; a model whose attention is your own needs --plugin my_attention.py.

        Args:
            model: A model folder with a tokenizer, for instance a run's model/ or a Llama or Qwen folder.
            prompt: The beginning of the text.
            max_new_tokens: Tokens to add.
            temperature: 0 is greedy.
            top_k: Sample from the k most likely tokens.
            top_p: Sample from the most likely tokens that hold this share of the probability.
            min_p: Sample from tokens at least this likely, relative to the most likely one.
            seed: The same seed gives the same text.
        """
        import torch

        from diffattn.data.tokenizer import Bytes, Subwords
        from diffattn.hub.convert import TOKENIZER, load

        decoder = load(model)
        vocabulary = model / TOKENIZER
        tokenizer = Subwords(vocabulary) if vocabulary.is_file() else Bytes()
        if tokenizer.vocab_size > decoder.config.vocab_size:
            raise ValueError(
                f"the model in {model} has {decoder.config.vocab_size} token ids, too few for text "
                f"({tokenizer.vocab_size}); it was trained on a synthetic task, or its {TOKENIZER} is missing"
            )
        # A beginning of text that the tokenizer has is one that the model was trained with; ours have none.
        opening = [tokenizer.start] if tokenizer.start != tokenizer.end else []
        ids = decoder.generate(
            torch.tensor([opening + tokenizer.encode([prompt.encode()])[0].tolist()]),
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            eos=tokenizer.end,
        )
        print(tokenizer.decode(ids[0, len(opening) :].tolist()))
        return 0

    return parse(run, load_plugins(argv), "generate")
