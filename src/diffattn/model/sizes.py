"""Model sizes by name, each as the softmax baseline and as a differential model of the same cost."""

import dataclasses
import difflib

from diffattn.model.config import ModelConfig
from diffattn.variants.base import MixerConfig


def _baseline(width: int, layers: int, heads: int, **others: int | float | bool) -> ModelConfig:
    """A Transformer of `heads` softmax heads; feed-forward of 8/3 W unless given."""
    fields = {"width": width, "layers": layers, "ffn_width": round(width * 8 / 3), **others}
    return ModelConfig.from_dict({"mixer": {"name": "softmax", "heads": heads}, **fields})


CL100K = 100288
"""The vocabulary of cl100k_base, rounded up to a multiple of 64."""

SIZES: dict[str, ModelConfig] = {
    # arXiv 2410.05258, App. E: width, layers, heads; written 2 * H for H output heads of the differential model.
    "paper_830m": _baseline(1536, 24, 2 * 8, vocab_size=CL100K, context=2048),
    "paper_1p4b": _baseline(2048, 24, 2 * 8, vocab_size=CL100K, context=2048),
    "paper_2p8b": _baseline(2560, 32, 2 * 10, vocab_size=CL100K, context=2048),
    "paper_6p8b": _baseline(4096, 32, 2 * 16, vocab_size=CL100K, context=2048),
    "paper_13b": _baseline(5120, 40, 2 * 20, vocab_size=CL100K, context=2048),
    # arXiv 2410.05258, App. D.
    "paper_3b": _baseline(3072, 28, 2 * 12, vocab_size=CL100K, context=4096, ffn_width=8192),
    # The config of stabilityai/stablelm-3b-4e1t: 32 heads of 80.
    "stablelm_3b": _baseline(
        2560, 32, 32, vocab_size=50304, context=4096, ffn_width=6912, rope_share=0.25, tied_embeddings=False
    ),
    # The widths and depths of GPT-2 small and medium, heads of 64, vocabulary rounded up to a multiple of 64.
    "ab_124m": _baseline(768, 12, 12, vocab_size=50304, context=1024),
    "ab_350m": _baseline(1024, 24, 16, vocab_size=50304, context=1024),
}
"""Each with its softmax baseline as the attention."""


def size(name: str, variant: str = "softmax") -> ModelConfig:
    """Give a named size with softmax, or with `diff_v1` or `diff_v2` in output heads of the baseline's two.

    The three have the same head width D. ValueError with the nearest name where there is no such size.
    """
    if name not in SIZES:
        close = difflib.get_close_matches(name, SIZES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"there is no size {name!r}{hint} (there are: {', '.join(SIZES)})")
    baseline = SIZES[name]
    if variant == "softmax":
        return baseline
    heads = baseline.mixer.to_dict()["heads"] // 2
    return dataclasses.replace(baseline, mixer=MixerConfig.from_dict({"name": variant, "heads": heads}))
