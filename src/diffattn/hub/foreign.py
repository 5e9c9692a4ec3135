"""Llama and Qwen folders as Hugging Face writes them, read as models of ours without its packages."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Decoder
from diffattn.variants.softmax import Softmax

KINDS = ("llama", "qwen2", "qwen3")
"""The `model_type`s that can be read."""
INDEX = "model.safetensors.index.json"
"""Which file holds which tensor, where the weights are spread over several."""

_MUST_BE: dict[str, tuple[tuple[Any, ...], str]] = {
    "hidden_act": (("silu",), "the feed-forward here is SwiGLU"),
    "attention_bias": ((False, None), "it gives the output projection a bias too, which attention has none of here"),
    "mlp_bias": ((False, None), "the feed-forward has no biases here"),
    "quantization_config": ((None,), "quantised weights cannot be read; take the folder they were made from"),
    "auto_map": ((None,), "the model is defined by code of its own"),
}
"""Fields with a meaning that a model of ours does not have: the values that can be read, and why no others."""
_UNREADABLE_SCALINGS = {
    "yarn": "its ramp runs over numbers of channels there and over numbers of turns, as in the paper, here",
    "dynamic": "its angles change with the length of the text",
    "longrope": "it has a factor of its own for each channel",
}
_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "unembedding.weight": "lm_head.weight",
}
_NAMES_IN_LAYERS = {
    "mixer_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    **{f"mixer.{x}.{kind}": f"self_attn.{x}_proj.{kind}" for x in "qkvo" for kind in ("weight", "bias")},
    **{f"mixer.{x}_norm": f"self_attn.{x}_norm.weight" for x in "qk"},
    **{f"{part}.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
}
_TURNED = re.compile(r"\.mixer\.[qk](\.|_)")
_NO_WEIGHT = re.compile(r"rotary_emb\.inv_freq$")
"""Tensors of older files that follow from the config."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def foreign_config(stored: Mapping[str, Any]) -> ModelConfig:
    """Give the config of ours with which a Llama or Qwen config.json computes the same.

    Dropout is left out; it has no part in what a trained model computes. ValueError, naming the field and the reason,
    where no model of ours does.
    """
    for name, (readable, reason) in _MUST_BE.items():
        if stored.get(name, readable[0]) not in readable:
            raise ValueError(f"{name} is {stored[name]!r} and can only be {readable[0]!r}: {reason}")
    kinds = [name for name in stored.get("architectures") or () if not name.endswith("ForCausalLM")]
    if kinds:
        raise ValueError(f"architectures names {kinds[0]}; only language models (ForCausalLM) can be read")
    sizes = {
        "vocab_size": "vocab_size",
        "width": "hidden_size",
        "layers": "num_hidden_layers",
        "context": "max_position_embeddings",
        "ffn_width": "intermediate_size",
        "norm_eps": "rms_norm_eps",
    }
    fields = {ours: _needed(stored, theirs) for ours, theirs in sizes.items()}
    _check_window(stored, fields["layers"], fields["context"])
    mixer = Softmax(
        heads=_needed(stored, "num_attention_heads"),
        kv_heads=stored.get("num_key_value_heads"),
        head_dim=stored.get("head_dim"),
        norm_eps=fields["norm_eps"],
        qkv_biases=stored["model_type"] == "qwen2",
        query_key_norm=stored["model_type"] == "qwen3",
    )
    tied = bool(stored.get("tie_word_embeddings", False))
    return ModelConfig(**fields, **_rope(stored), mixer=mixer, tied_embeddings=tied, embedding_scale=False)


def foreign_weights(files: list[Path], model: Decoder, device: str | torch.device) -> dict[str, Tensor]:
    """Read the weights for a model of `foreign_config`, by our names, one tensor at a time; they keep their dtype.

    They turn channels i and i + D/2 of a head of D as a pair, we 2i and 2i + 1: the rows of queries and keys, their
    biases and the weights of their norms change places. ValueError: files missing or damaged, tensors missing, unknown,
    of another shape or of several dtypes.
    """
    own = model.state_dict()
    wanted = {_their_name(name): (name, list(tensor.shape)) for name, tensor in own.items()}
    if model.config.tied_embeddings:
        # Some files hold the embedding under both names.
        wanted["lm_head.weight"] = ("head", wanted["model.embed_tokens.weight"][1])
    folder = files[0].parent
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt", device=str(device)) as tensors:
                for theirs in tensors.keys():  # noqa: SIM118
                    if _NO_WEIGHT.search(theirs):
                        continue
                    name, shape = wanted.get(theirs, ("", None))
                    found = tensors.get_slice(theirs).get_shape()
                    if found != shape:
                        raise ValueError(_misfit(folder, theirs, shape, found))
                    weights[name] = _in_our_order(name, tensors.get_tensor(theirs), model)
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged: {error}") from error
    for theirs, (name, shape) in wanted.items():
        if name in own and name not in weights:
            raise ValueError(_misfit(folder, theirs, shape, None))
    head = weights.pop("head", None)
    if head is not None and not torch.equal(head, weights["embedding.weight"]):
        raise ValueError(f"{folder}: tie_word_embeddings is true, but lm_head.weight is not model.embed_tokens.weight")
    dtypes = {tensor.dtype for tensor in weights.values()}
    if len(dtypes) > 1 or not dtypes <= set(_DTYPES):
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"the weights in {folder} are {names}; they must be of one floating-point type")
    return weights


def weight_files(folder: Path) -> list[Path]:
    """List the files that the weights of a model folder lie in, ours or not; ValueError where one is missing."""
    single, index = folder / "model.safetensors", folder / INDEX
    if single.is_file() or not index.is_file():
        names = [single.name]
    else:
        try:
            held = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            names = sorted({str(name) for name in held.values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{index} cannot be read ({error!r}); it should say which file holds which tensor"
            ) from error
        if not names:
            raise ValueError(f"{index} names no file, so the weights are missing")
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            hint = f", which {INDEX} names" if name != single.name else ""
            raise ValueError(f"{folder} has a config.json but no {name}{hint}; it is not a complete model folder")
    return [folder / name for name in names]


def _needed(stored: Mapping[str, Any], name: str) -> Any:
    if stored.get(name) is None:
        raise ValueError(f"{name} is missing from config.json")
    return stored[name]


def _check_window(stored: Mapping[str, Any], layers: int, context: int) -> None:
    """Raise ValueError where a layer sees only a part of the context."""
    kinds = stored.get("layer_types")
    if kinds is None:
        slides = bool(stored.get("use_sliding_window")) and stored.get("max_window_layers", layers) < layers
    else:
        slides = any(kind != "full_attention" for kind in kinds)
    window = stored.get("sliding_window")
    if slides and (window is None or window < context):
        raise ValueError(
            f"sliding_window is {window} in some layers; every layer here sees the whole context of {context}"
        )


def _rope(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Give our fields of rotary. Newer configs have everything in rope_parameters, older ones two fields for it."""
    given = {**(stored.get("rope_scaling") or {}), **(stored.get("rope_parameters") or {})}
    kind, factor = given.get("rope_type", given.get("type", "default")), given.get("factor")
    fields: dict[str, Any] = {"rope_base": float(given.get("rope_theta", stored.get("rope_theta", 10000.0)))}
    share = given.get("partial_rotary_factor", stored.get("partial_rotary_factor"))
    if any(isinstance(value, Mapping) for value in given.values()):
        raise ValueError("rope_parameters differ from layer to layer; all layers here have the same positions")
    if share not in (None, 1):
        raise ValueError(f"partial_rotary_factor is {share}; only heads that are turned whole can be read")
    if kind in ("linear", "llama3") and not isinstance(factor, int | float):
        raise ValueError(f"rope_scaling: factor is {factor!r}; {kind} scaling needs a number")
    if kind == "default" or (kind in ("linear", "llama3") and factor == 1):
        return fields
    fields |= {"rope_scaling": kind, "rope_factor": factor}
    if kind == "llama3":
        ramp = given.get("low_freq_factor"), given.get("high_freq_factor")
        if ramp != (1, 4):
            raise ValueError(f"rope_scaling: low and high_freq_factor are {ramp}; only 1 and 4 can be read")
        fields["rope_original_context"] = given.get(
            "original_max_position_embeddings", stored["max_position_embeddings"]
        )
    elif kind != "linear":
        reason = _UNREADABLE_SCALINGS.get(kind, "it is not known here")
        raise ValueError(
            f"rope_scaling of type {kind!r} cannot be read: {reason}; without that field the model is read unscaled"
        )
    return fields


def _their_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{_NAMES_IN_LAYERS[rest]}"


def _in_our_order(name: str, tensor: Tensor, model: Decoder) -> Tensor:
    """A copy, which starts at an aligned address and does not keep the file open."""
    if not _TURNED.search(name):
        return tensor.clone()
    head_dim = model.blocks()[0].mixer.head_dim
    return tensor.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2).contiguous()


def _misfit(folder: Path, name: str, wanted: list[int] | None, found: list[int] | None) -> str:
    should, has = ("absent" if shape is None else str(shape) for shape in (wanted, found))
    return f"the weights in {folder} do not fit its config.json: {name} should be {should}, the file has {has}"
