"""How a run begins: the model's first weights, what identifies the run, and the machine it runs on."""

import fnmatch
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
from diffattn.data.base import nearest
from diffattn.hub import convert
from diffattn.hub.adapt import ATTENTION, adapt
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Decoder, build
from diffattn.model.stretch import scaling_towards, stretched
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
    """The model with its first weights, drawn from the seed or those of `init_from`, and what is not trained frozen.

    ValueError: a vocabulary smaller than the data's; a folder of another model, vocabulary or tokenizer, naming the
    difference; no folder for an attention that needs one; patterns of parameters that are not there.
    """
    if run.model.vocab_size < data.vocab_size:
        raise ValueError(
            f"model.vocab_size is {run.model.vocab_size}, but the data has {data.vocab_size} token ids; "
            f"set model.vocab_size to {data.vocab_size}"
        )
    extended = _extended(run.model)
    if run.train.init_from is not None:
        model = _loaded(run, data, device)
    elif extended:
        raise ValueError(
            f"{run.model.mixer_at(extended[0][0]).name} trains from a loaded model only; set train.init_from to the "
            "model/ folder of a finished softmax run"
        )
    else:
        model = build(run.model, seed=run.seed, device=device)
    train_only(model, run)
    return model


def train_only(model: Decoder, run: RunConfig) -> None:
    """Freeze the parameters that the run does not train; ValueError: a pattern without a parameter."""
    own = tuple(f"layers.{layer}.mixer.{name}" for layer, name in _extended(run.model))
    patterns = run.train.train_only or own
    names = [name for name, _ in model.named_parameters()]
    chosen = set() if patterns else set(names)
    for pattern in patterns:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise ValueError(
                f"train.train_only: no parameter is called {pattern!r}{nearest(pattern, names)}; the first layer's are "
                f"{', '.join(name for name in names if name.startswith('layers.0.'))}"
            )
        chosen.update(found)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)


def trained_parameters(run: RunConfig) -> int:
    """Count the parameters that a run trains, embeddings included."""
    with torch.device("meta"):
        model = Decoder(run.model)
    train_only(model, run)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _extended(config: ModelConfig) -> list[tuple[int, str]]:
    """Layer and name of the parameters that attentions add to a loaded model."""
    return [(layer, name) for layer in range(config.layers) for name in config.mixer_at(layer).trains]


def _loaded(run: RunConfig, data: Data, device: torch.device) -> Decoder:
    assert run.train.init_from is not None
    folder = Path(run.train.init_from)
    model = convert.load(folder, device=device)
    if run.model.context != model.config.context:
        model = stretched(model, run.model.context, scaling_towards(model.config, run.model))
    refuse_difference(
        {"model": _without_attention(model.config), "tokenizer": _tokenizer(folder / convert.TOKENIZER)},
        {"model": _without_attention(run.model), "tokenizer": _tokenizer(tokenizer_file(data))},
        f"the model in {folder}",
    )
    return adapt(model, run.model, run.seed)


def _without_attention(config: ModelConfig) -> dict[str, Any]:
    return {name: value for name, value in config.to_dict().items() if name not in ATTENTION}


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
