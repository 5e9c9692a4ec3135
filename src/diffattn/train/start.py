"""How a run begins: the model's first weights, what identifies the run, and the machine it runs on."""

import hashlib
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

import diffattn
from diffattn.data import Data
from diffattn.hub import convert
from diffattn.model.decoder import Decoder, build
from diffattn.train import profile
from diffattn.train.checkpoint import refuse_difference
from diffattn.train.config import RunConfig

FREE = ("save_every", "keep", "tensorboard", "wandb")
"""Training settings that may change when a run goes on: they change no number."""


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """What must not change between the parts of a run, out of a config.json: all but labels and `FREE` settings."""
    settings = {name: value for name, value in config["train"].items() if name not in FREE}
    return {"model": config["model"], "data": config["data"], "train": settings, "seed": config["seed"]}


def starting_model(run: RunConfig, data: Data, device: torch.device) -> Decoder:
    """The model with its first weights: drawn from the seed, or those of `init_from`.

    ValueError: a vocabulary smaller than the data's; a folder of another model, vocabulary or tokenizer, naming the
    difference.
    """
    if run.model.vocab_size < data.vocab_size:
        raise ValueError(
            f"model.vocab_size is {run.model.vocab_size}, but the data has {data.vocab_size} token ids; "
            f"set model.vocab_size to {data.vocab_size}"
        )
    if run.train.init_from is None:
        return build(run.model, seed=run.seed, device=device)
    folder = Path(run.train.init_from)
    model = convert.load(folder, device=device)
    refuse_difference(
        {"model": model.config.to_dict(), "tokenizer": _tokenizer(folder / convert.TOKENIZER)},
        {"model": run.model.to_dict(), "tokenizer": _tokenizer(tokenizer_file(data))},
        f"the model in {folder}",
    )
    return model.float()


def tokenizer_file(data: Data) -> Path | None:
    """The tokenizer.json behind the data's ids; None for bytes and for synthetic tasks."""
    folder = getattr(data, "folder", None)  # only prepared text has one
    file = None if folder is None else folder / convert.TOKENIZER
    return file if file is not None and file.is_file() else None


def _tokenizer(file: Path | None) -> str:
    if file is None or not file.exists():
        return "without a tokenizer.json"
    return f"tokenizer.json {hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


def environment(device: torch.device, precision: str, threads: int, peak: float) -> dict[str, Any]:
    """Versions, hardware and command, as environment.json keeps them."""
    return {
        "diffattn": diffattn.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": profile.processor(device),
        "cores": os.cpu_count(),
        "threads": threads,
        "precision": precision,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "peak_gflops": round(peak / 1e9, 1),
    }
