"""Small Llama and Qwen folders, written by the package that defines them."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    # Large enough to be missed where it is left out.
    "rms_norm_eps": 0.01,
}
KINDS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def foreign_model(kind: str, **fields: Any) -> transformers.PreTrainedModel:
    """In float32, with weights under which attention looks at single tokens and every parameter matters."""
    config, model_class = KINDS[kind]
    model = model_class(config(**{**SIZES, **fields})).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1.5 * parameter.shape[-1] ** -0.5)
    return model


def foreign_folder(folder: Path, kind: str = "llama", **fields: Any) -> Path:
    """A folder of such a model."""
    foreign_model(kind, **fields).save_pretrained(folder)
    return folder


def edit(folder: Path, **changes: Any) -> None:
    """Change fields of a folder's config.json; None takes one out."""
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
