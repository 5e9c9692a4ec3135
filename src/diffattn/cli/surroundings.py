"""The verbs around training: data and info."""

import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from diffattn.cli.arguments import first, load_plugins, nearest, parse

if TYPE_CHECKING:
    from diffattn.lab.plan import Plan


def data(argv: list[str]) -> int:
    """`data prepare SOURCE`: tokenise a corpus into memory-mapped shards and print its manifest."""
    action, rest = first(argv, "data", "prepare SOURCE", "  prepare SOURCE   tokenise and split a corpus")
    if action != "prepare":
        raise ValueError(
            f"unknown action {action!r}{nearest(action, ['prepare'])}; there is `diffattn data prepare SOURCE`"
        )

    def run(
        source: Annotated[str, Positional] = "stdlib",
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

    return parse(run, rest, "data prepare")


def info(argv: list[str]) -> int:
    """What this installation has: versions, implementations, variants, sizes, recipes, tasks of `eval`."""
    if argv and argv[0] in ("-h", "--help"):
        print("usage: diffattn info [variants|implementations|sizes|recipes|tasks] [--plugin my_attention.py]")
        return 0
    argv = load_plugins(argv)
    import torch

    import diffattn
    from diffattn import recipes, variants
    from diffattn.cli.evaluate import described
    from diffattn.model.sizes import SIZES
    from diffattn.ops.cpu.library import instruction_set

    topics = {
        "variants": {name: variants.get(name).describe() for name in variants.names()},
        "implementations": {name: why or "available" for name, why in diffattn.implementations().items()},
        "sizes": {name: f"{config.cost().parameters:,} parameters" for name, config in SIZES.items()},
        "recipes": {name: "\n".join(_about(recipes.get(name))) for name in recipes.names()},
        "tasks": described(),
    }
    if argv and argv[0] not in topics:
        raise ValueError(f"unknown topic {argv[0]!r}{nearest(argv[0], list(topics))}; there are {', '.join(topics)}")
    if not argv:
        print(f"diffattn {diffattn.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
        print(
            f"{torch.get_num_threads()} threads, CPU kernel {instruction_set() or 'not available'}, "
            f"CUDA {'available' if torch.cuda.is_available() else 'not available'}"
        )
    for topic in argv or topics:
        print(f"\n{topic}")
        width = max(map(len, topics[topic])) + 2
        for name, line in topics[topic].items():
            print(f"  {name:<{width}}" + line.replace("\n", "\n" + (2 + width) * " "))
    return 0


def _about(plan: "Plan") -> Iterator[str]:
    if plan.question:
        yield plan.question
    yield plan.description
