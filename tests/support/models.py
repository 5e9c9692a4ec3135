"""Small decoders for tests, with grouped queries and rotary positions."""

from typing import Any

import torch
from torch import Tensor

from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Decoder, build
from diffattn.variants.base import MixerConfig
from support.implementations import home, narrowest

VARIANTS = ["softmax", "diff_v1", "diff_v2"]
"""One map, two of one λ, two whose λ depends on the token; each registered variant has its contract suite."""


def small_config(variant: str = "softmax", mixer: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
    """Two layers of width 32, 4 output heads in 2 groups, 40 token ids."""
    mixer = mixer or {}
    fitting = narrowest(mixer.get("impl", "auto"))
    attention = MixerConfig.from_dict({"name": variant, "heads": 4, "kv_heads": 2, **fitting, **mixer})
    sizes = {"vocab_size": 40, "width": 32, "layers": 2, "context": 24, "ffn_width": 48}
    return ModelConfig(**{**sizes, "mixer": attention, **fields})


def small_model(
    variant: str = "softmax", dtype: torch.dtype | None = None, seed: int = 0, impl: str = "auto", **fields: Any
) -> Decoder:
    """Float64 where the implementation serves it, so that a difference of 1e-10 means something."""
    fields["mixer"] = {"impl": impl, **fields.get("mixer", {})}
    return build(small_config(variant, **fields), seed=seed, dtype=dtype or home(impl).dtype)


def random_tokens(batch: int, length: int, vocab_size: int = 40, seed: int = 1) -> Tensor:
    """Token ids [batch, length]."""
    return torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))
