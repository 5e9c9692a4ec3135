"""The command line: verbs to functions. `diffattn --help` imports no torch, so that it answers at once.

Every user's mistake ends as one line on stderr and exit status 2; a traceback means a defect of ours.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

USAGE = """\
Differential attention for PyTorch: operators, layers, models and fair comparisons.

usage: diffattn VERB [ARGUMENTS]        diffattn VERB --help tells the rest

{verbs}

Heads are always output heads: a Transformer of the same cost as a differential one has twice as many.
"""

# Packages that only some verbs need, and the extra that brings each.
EXTRAS = {
    "scipy": "report",
    "jinja2": "report",
    "datasets": "data",
    "pyarrow": "data",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one verb; returns the exit status: 0 done, 2 a mistake in the call or its input, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        rows = (f"  {name:<10}{(verb.__doc__ or '').splitlines()[0]}" for name, verb in VERBS.items())
        print(USAGE.format(verbs="\n".join(rows)))
        return 0
    if argv[0] == "--version":
        from diffattn import __version__

        print(f"diffattn {__version__}")
        return 0
    try:
        if argv[0] not in VERBS:
            raise ValueError(f"unknown verb {argv[0]!r}{_nearest(argv[0], list(VERBS))}; `diffattn --help` lists them")
        return VERBS[argv[0]](argv[1:]) or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"diffattn: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        print(f"diffattn: {error.name} is missing: pip install 'diffattn[{EXTRAS[error.name]}]'", file=sys.stderr)
        return 2


def _nearest(word: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _parse(target: Callable[..., Any], argv: list[str], verb: str, **options: Any) -> Any:
    """Parses argv into target's arguments (dotted for nested configs); argument mistakes exit with status 2."""
    import tyro

    return tyro.cli(target, args=argv, prog=f"diffattn {verb}", **options)


def _first(argv: list[str], verb: str, what: str, listing: str) -> tuple[str, list[str]]:
    """Takes the leading word of a verb (a recipe, a folder); without one it prints what there is to choose from."""
    if argv and not argv[0].startswith("-"):
        return argv[0], argv[1:]
    if argv and argv[0] in ("-h", "--help"):
        print(
            f"usage: diffattn {verb} {what} [OPTIONS]        diffattn {verb} NAME --help tells the options\n\n{listing}"
        )
        raise SystemExit(0)
    raise ValueError(f"`diffattn {verb}` needs {what} first\n{listing}")


def compare(argv: list[str]) -> int:
    """Train a recipe's arms fairly and write the report (runs what is missing, goes on where it stopped)."""
    from diffattn import recipes

    listing = "\n".join(f"  {name:<14}{recipes.get(name).description}" for name in recipes.names())
    name, rest = _first(argv, "compare", "RECIPE", listing)
    plan = recipes.get(name)
    from dataclasses import replace

    from tyro.conf import AvoidSubcommands, arg

    from diffattn.lab import runner
    from diffattn.lab.plan import Task

    def run(
        task: Annotated[Task, arg(name="")] = plan.tasks[0],
        out: Path | None = None,
        arms: tuple[str, ...] = (),
        dry_run: bool = False,
        hours: float | None = None,
        confirm: tuple[str, ...] = (),
        workers: int | None = None,
    ) -> int:
        """Compares the arms of a recipe; dotted options change its first task.

        Args:
            task: The first task of the recipe.
            out: Folder of the runs and the report; runs/RECIPE when left out.
            arms: Only these arms (the baseline always stays).
            dry_run: Say what the plan costs and what difference it can see; train nothing.
            hours: Say how many seeds fit into so many hours and what they can see; train nothing.
            confirm: After a screen: these arms (at most 4) again on fresh seeds, as a plan of its own.
            workers: Runs side by side; chosen from the cores when left out.
        """
        chosen = tuple(runner.select(each, arms) if arms else each for each in (task, *plan.tasks[1:]))
        resolved = replace(plan, tasks=chosen)
        folder = out or Path("runs") / plan.name
        report = runner.compare(
            resolved,
            folder,
            workers=workers,
            dry_run=dry_run,
            hours=hours,
            confirm=confirm,
            command=_command("compare", argv),
        )
        if report is not None:
            print(report)
        return 0

    return _parse(run, rest, f"compare {name}", config=(AvoidSubcommands,))


def _command(verb: str, argv: list[str]) -> str:
    import shlex

    return shlex.join(["diffattn", verb, *argv])


def train(argv: list[str]) -> int:
    """Train one model: `--variant NAME` chooses the attention, `--from config.json` repeats a run."""
    import json
    from dataclasses import replace

    from tyro.conf import AvoidSubcommands, arg

    from diffattn import variants
    from diffattn.data import TextData, data_from_dict, open_data
    from diffattn.model.config import ModelConfig
    from diffattn.train.config import RunConfig, TrainConfig
    from diffattn.train.trainer import train as train_run

    argv, chosen = _take(argv, "--from", "--variant", "--task", "--plugin")
    if chosen["--plugin"]:
        variants.load_plugin(chosen["--plugin"])
    preset = RunConfig(model=ModelConfig(), data=TextData(), train=TrainConfig())
    if path := chosen["--from"]:
        preset = RunConfig.from_dict(json.loads(Path(path).read_text()))
    if name := chosen["--variant"]:
        preset = replace(preset, model=replace(preset.model, mixer=variants.get(name)()))
    if task := chosen["--task"]:
        preset = replace(preset, data=data_from_dict({"kind": "synthetic", "task": task}))

    def run(config: Annotated[RunConfig, arg(name="")] = preset, out: Path = Path("runs/train")) -> int:
        """Trains one model into a run folder; the same command goes on where a stopped run ended.

        The vocabulary is the data's, unless --from names a whole config.

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

    return _parse(run, argv, "train", config=(AvoidSubcommands,))


def _take(argv: list[str], *flags: str) -> tuple[list[str], dict[str, str | None]]:
    """Takes flags that decide which options exist out of argv, before the options themselves are parsed."""
    rest, found = list(argv), dict.fromkeys(flags)
    for flag in flags:
        if flag in rest:
            at = rest.index(flag)
            if at + 1 >= len(rest):
                raise ValueError(f"{flag} needs a value")
            found[flag] = rest[at + 1]
            del rest[at : at + 2]
    return rest, found


def evaluate(argv: list[str]) -> int:
    """Held-out loss of a model folder on a corpus: nats, bits per byte, loss by position."""

    def run(
        model: Annotated[Path, _positional()],
        source: str = "stdlib",
        split: Literal["dev", "test"] = "dev",
        tokens: int | None = None,
        batch_size: int = 8,
    ) -> int:
        """Prints the held-out loss of a model as JSON.

        Args:
            model: A model folder, for instance runs/quick/text-diff_v1-lr0.005-s0/model.
            source: The corpus: "stdlib", a file, a folder, a glob, JSONL, parquet or hf:OWNER/NAME.
            split: "dev" or "test".
            tokens: At most so many tokens.
            batch_size: Windows at a time; changes no number.
        """
        import json

        from diffattn.evals.perplexity import evaluate_folder

        print(json.dumps(evaluate_folder(model, source, split=split, tokens=tokens, batch_size=batch_size).to_dict()))
        return 0

    return _parse(run, argv, "eval")


def generate(argv: list[str]) -> int:
    """Continue a text with a model folder."""

    def run(
        model: Annotated[Path, _positional()],
        prompt: str,
        max_new_tokens: int = 100,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int = 0,
    ) -> int:
        """Prints the prompt and its continuation.

        Args:
            model: A model folder with a tokenizer, for instance a run's model/.
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
        ids = torch.from_numpy(tokenizer.encode([prompt.encode()])[0].astype("int64"))[None]
        ids = decoder.generate(
            ids,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            eos=tokenizer.end,
        )
        print(tokenizer.decode(ids[0].tolist()))
        return 0

    return _parse(run, argv, "generate")


def data(argv: list[str]) -> int:
    """`data prepare SOURCE`: tokenise a corpus into memory-mapped shards and print its manifest."""
    action, rest = _first(argv, "data", "prepare SOURCE", "  prepare SOURCE   tokenise and split a corpus")
    if action != "prepare":
        raise ValueError(
            f"unknown action {action!r}{_nearest(action, ['prepare'])}; there is `diffattn data prepare SOURCE`"
        )

    def run(
        source: Annotated[str, _positional()] = "stdlib",
        tokenizer: str = "bytes",
        vocab_size: int = 8192,
        text_field: str = "text",
        limit_bytes: int | None = None,
    ) -> int:
        """Prepares a corpus: 90/5/5 by document, tokenised, packed, with a manifest.

        Args:
            source: "stdlib", a file, folder or glob, JSONL, parquet, or hf:OWNER/NAME[:CONFIG] (Hugging Face).
            tokenizer: "bytes", "bpe" (trained on the training split) or a path to a tokenizer.json.
            vocab_size: Entries of a trained vocabulary.
            text_field: The field of JSONL, parquet or a data set that holds the text.
            limit_bytes: At most so much text.
        """
        from diffattn.data import TextData
        from diffattn.data.prepare import prepare

        folder = prepare(
            TextData(
                source=source,
                tokenizer=tokenizer,
                vocab_size=vocab_size,
                text_field=text_field,
                limit_bytes=limit_bytes,
            )
        )
        print((folder / "manifest.json").read_text().rstrip())
        print(folder)
        return 0

    return _parse(run, rest, "data prepare")


def info(argv: list[str]) -> int:
    """What this installation has: versions, implementations, variants, sizes, recipes."""
    import platform

    import torch

    import diffattn
    from diffattn import recipes, variants
    from diffattn.model.sizes import SIZES

    topics = {
        "variants": {name: variants.get(name).describe() for name in variants.names()},
        "implementations": {name: why or "available" for name, why in diffattn.implementations().items()},
        "sizes": {name: f"{config.cost().parameters:,} parameters" for name, config in SIZES.items()},
        "recipes": {name: recipes.get(name).description for name in recipes.names()},
    }
    if argv and argv[0] not in topics:
        raise ValueError(f"unknown topic {argv[0]!r}{_nearest(argv[0], list(topics))}; there are {', '.join(topics)}")
    if not argv:
        print(f"diffattn {diffattn.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
        print(
            f"{torch.get_num_threads()} threads, CUDA {'available' if torch.cuda.is_available() else 'not available'}"
        )
    for topic in argv or topics:
        print(f"\n{topic}")
        for name, line in topics[topic].items():
            print(f"  {name:<16}{line}")
    return 0


def verdict(argv: list[str]) -> int:
    """Judge losses from any trainer: a CSV with the columns arm, seed, budget, loss. Needs no torch."""

    def run(losses: Annotated[Path, _positional()], baseline: str | None = None, margin: float | None = None) -> int:
        """Prints intervals and verdict sentences.

        Args:
            losses: CSV with a header: arm, seed, budget (full, quarter or ruler), loss.
            baseline: The arm that the others are compared with; softmax, baseline or transformer when left out.
            margin: The smallest difference that matters, in nats; 0.43 of the ruler's effect when left out.
        """
        from diffattn.lab.verdict import verdict as judge

        print(judge(losses, baseline=baseline, margin=margin))
        return 0

    return _parse(run, argv, "verdict")


def report(argv: list[str]) -> int:
    """Write report.html, report.json and report.md again from a plan's folder. Needs no torch."""

    def run(folder: Annotated[Path, _positional()]) -> int:
        """Writes the report of a plan's folder.

        Args:
            folder: For instance runs/quick.
        """
        from diffattn.lab.report import write_report

        print(write_report(folder))
        return 0

    return _parse(run, argv, "report")


def _positional() -> Any:
    from tyro.conf import Positional

    return Positional


VERBS: dict[str, Callable[[list[str]], int]] = {
    "compare": compare,
    "train": train,
    "eval": evaluate,
    "generate": generate,
    "data": data,
    "info": info,
    "verdict": verdict,
    "report": report,
}

if __name__ == "__main__":
    sys.exit(main())
