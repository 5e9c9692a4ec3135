"""The held-out data of a saved model: what its run was trained on, or a text."""

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from diffattn.data import TextData, data_from_dict, open_data
from diffattn.data.base import Batch, Data
from diffattn.evals.opening import run_of
from diffattn.hub.convert import CONFIG, TOKENIZER
from diffattn.model.decoder import Decoder


def held_out(folder: Path, model: Decoder, source: str | None = None) -> Data:
    """Open the data to judge the model of a folder on, in single windows: text too short for a training batch will do.

    source as in `TextData`, read with the tokenizer in the folder; None: the data of the run whose model/ this is,
    else Python's standard library. ValueError: no usable data, a model without a tokenizer for it.
    """
    vocabulary, run = Path(folder) / TOKENIZER, run_of(folder)
    config = TextData(tokenizer=str(vocabulary) if vocabulary.is_file() else "bytes")
    if source is not None:
        config = replace(config, source=source)
    elif run and "data" in (stored := json.loads((run / CONFIG).read_text(encoding="utf-8"))):
        config = data_from_dict(stored["data"])
    data = open_data(config, context=model.config.context, batch_size=1, seed=0)
    if data.vocab_size > model.config.vocab_size:
        words = config.tokenizer if isinstance(config, TextData) else config.task
        raise ValueError(
            f"the model in {folder} has {model.config.vocab_size} token ids, "
            f"{words} have {data.vocab_size}; put the {TOKENIZER} it was trained with into its folder"
        )
    return data


def together(windows: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Join up to `size` windows into one batch."""
    windows = iter(windows)
    while group := list(itertools.islice(windows, size)):
        yield Batch(*(torch.cat(columns) for columns in zip(*group, strict=True)))
