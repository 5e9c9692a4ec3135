"""Models as folders: config.json and model.safetensors, written whole or not at all."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from diffattn.hub.foreign import KINDS, foreign_config, foreign_weights, weight_files
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Decoder

FORMAT = "diffattn"
VERSION = 1
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


def save(model: Decoder, path: str | Path, format: str = FORMAT, tokenizer: str | Path | None = None) -> None:
    """Write the model's folder; what stood there before is replaced only once the new one is complete.

    tokenizer: a tokenizer.json to copy into it. Weights keep their dtype. ValueError: another format, or something
    else than a model stands in the way. OSError: the disk is full or the place read-only; nothing is left behind.
    """
    # What torch.compile returns holds the model in this attribute, and prefixes the names of all weights with it.
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, Decoder):
        raise ValueError(
            f"model: got {type(model).__name__}, needs a Decoder; keep other modules by their state_dict()"
        )
    if format != FORMAT:
        raise ValueError(f"models can be saved in the format {FORMAT!r}; got {format!r}")
    target = Path(path).absolute()
    if target.exists() and not (target.is_dir() and (_is_model(target) or not any(target.iterdir()))):
        raise ValueError(f"{path} exists and is no model folder; choose another path or remove it")
    config = {"format": FORMAT, "version": VERSION, "model": model.config.to_dict()}
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        _write_weights(tensors, partial / WEIGHTS)
        if tokenizer is not None:
            shutil.copyfile(tokenizer, partial / TOKENIZER)
        _replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load(path: str | Path, device: str | torch.device = "cpu") -> Decoder:
    """Read a model folder that `save` wrote, or a Llama, Qwen2 or Qwen3 folder as Hugging Face writes them.

    The weights keep their stored dtype. ValueError, naming what was found: a folder of another kind or format, an
    unknown variant, something that no model of ours computes, weights that are damaged or do not fit the config.
    """
    folder = Path(path)
    config, foreign = read_config(folder), _is_foreign(_read_json(folder))
    files = weight_files(folder)
    with torch.device("meta"):
        model = Decoder(config)
    weights = foreign_weights(files, model, device) if foreign else _own_weights(files[0], model, device)
    model.load_state_dict(weights, assign=True)
    return model


def read_config(path: str | Path) -> ModelConfig:
    """Read what a model folder says of its model, without the weights; ValueError as `load`."""
    folder = Path(path)
    stored = _read_json(folder)
    return _foreign_config(folder, stored) if _is_foreign(stored) else _own_config(folder, stored)


def _own_weights(file: Path, model: Decoder, device: str | torch.device) -> dict[str, torch.Tensor]:
    try:
        weights = load_file(file, device=str(device))
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if wanted != found:
        name = sorted(set(wanted.items()) ^ set(found.items()))[0][0]
        raise ValueError(
            f"{file} does not fit its {CONFIG}: {name} should be {_shape(wanted.get(name))}, "
            f"the file has {_shape(found.get(name))}"
        )
    # Copies start at aligned addresses, which tensors within the file do not; matrix products then round as they did
    # in the model that was saved.
    return {name: tensor.clone() for name, tensor in weights.items()}


def _read_json(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        inside = folder / "model"
        runs = [inside, *sorted(folder.glob("*/model"))]
        hint = next((f"; did you mean {one}?" for one in runs if (one / CONFIG).is_file()), "")
        missing = f"has no {CONFIG}" if folder.is_dir() else "is not a folder"
        raise ValueError(f"{folder} {missing}, so it is no model folder{hint}")
    try:
        stored: Any = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG} is not JSON: {error}") from error
    return stored if isinstance(stored, dict) else {}


def _is_foreign(stored: dict[str, Any]) -> bool:
    return "format" not in stored and stored.get("model_type") in KINDS


def _foreign_config(folder: Path, stored: dict[str, Any]) -> ModelConfig:
    try:
        return foreign_config(stored)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} is a Hugging Face {stored['model_type']!r} model, but {error}") from error


def _own_config(folder: Path, stored: dict[str, Any]) -> ModelConfig:
    if stored.get("format") != FORMAT:
        raise ValueError(f"{folder} is no {FORMAT} model: {_kind(folder, stored)}")
    if stored.get("version") != VERSION:
        raise ValueError(
            f"{folder} was written in version {stored.get('version')!r} of the format; this diffattn reads version "
            f"{VERSION}: install the diffattn that wrote it"
        )
    try:
        return ModelConfig.from_dict(stored["model"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / CONFIG} is damaged: its model section cannot be read ({error!r})") from error


def _kind(folder: Path, stored: dict[str, Any]) -> str:
    """Say what a folder holds instead of our format."""
    if "model_type" in stored:
        kind, known = stored["model_type"], ", ".join(KINDS)
        return f"its {CONFIG} is that of a Hugging Face {kind!r} model, which cannot be read (only {known} can)"
    if (folder / "model" / CONFIG).is_file():
        return f"it looks like a run's folder; its model is {folder / 'model'}"
    return f"its {CONFIG} says format {stored.get('format')!r}"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


def _is_model(folder: Path) -> bool:
    """Whether `save` may replace the folder: not somebody else's model, of which it would keep the weights at most."""
    return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file() and not _is_foreign(_read_json(folder))


def _write_weights(tensors: dict[str, torch.Tensor], file: Path) -> None:
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{file} could not be written: {error}") from error


def _replace(new: Path, target: Path) -> None:
    """Put a finished folder in place of another; a reader finds the old one, the new one, or for an instant none."""
    if not target.exists():
        new.rename(target)
        return
    old = new.with_suffix(".old")
    target.rename(old)
    try:
        new.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)
