"""Which model folders read text, and the readers of those that do."""

import hashlib
import json
from pathlib import Path

from diffattn.data.tokenizer import Bytes, Subwords, Tokenizer
from diffattn.evals.reader import ModelReader
from diffattn.hub.convert import CONFIG, TOKENIZER, WEIGHTS, load, read_config

OTHERWISE = "of a model that reads no text ask --tasks loss maps outliers, measured on the data of its run"


def open_reader(folder: Path, batch_size: int = 16) -> ModelReader:
    """Read a model folder, with the tokenizer in it or else bytes; ValueError as `tokenizer_of`, or no model."""
    return ModelReader(load(folder), tokenizer_of(folder), identify(folder), batch_size)


def tokenizer_of(folder: Path) -> Tokenizer:
    """Find how a model folder reads text, without its weights; ValueError, with what can be asked, where it does not.

    The run whose model/ this is may say that its data are synthetic; else the ids of a model without a tokenizer.json
    are bytes if there are neither too few of them nor too many.
    """
    size, vocabulary = read_config(folder).vocab_size, Path(folder) / TOKENIZER
    if task := synthetic_task(folder):
        raise ValueError(
            f"the model in {folder} was trained on {task}, a synthetic task, and reads no text; {OTHERWISE}"
        )
    tokenizer = Subwords(vocabulary) if vocabulary.is_file() else Bytes()
    if size < tokenizer.vocab_size:
        raise ValueError(
            f"the model in {folder} has {size} token ids, too few for text ({tokenizer.vocab_size}): it was trained on "
            f"a synthetic task, or its {TOKENIZER} is missing or another one; {OTHERWISE}"
        )
    if isinstance(tokenizer, Bytes) and size >= 2 * tokenizer.vocab_size:
        raise ValueError(
            f"{folder} has no {TOKENIZER}, and its model has {size} token ids, too many to read bytes; put the "
            f"{TOKENIZER} that it was trained with into its folder"
        )
    return tokenizer


def run_of(folder: Path) -> Path | None:
    """Give the folder of the run whose model/ this is; None: a model by itself, a checkpoint beside others."""
    run = Path(folder).absolute().parent
    return run if Path(folder).absolute().name == "model" and (run / CONFIG).is_file() else None


def synthetic_task(folder: Path) -> str | None:
    """Name the synthetic task of the run whose model/ this is; None: text, or no run."""
    run = run_of(folder)
    match run and json.loads((run / CONFIG).read_text(encoding="utf-8")):
        case {"data": {"kind": "synthetic", "task": str(task)}}:
            return task
    return None


def identify(folder: Path) -> str:
    """Hash a model folder's config, weights and tokenizer: the first 16 hexadecimal digits of SHA-256."""
    digest = hashlib.sha256()
    for file in sorted(Path(folder).iterdir()):
        if file.name in (CONFIG, TOKENIZER) or file.suffix == Path(WEIGHTS).suffix:
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]
