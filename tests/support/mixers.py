"""Small layers of any registered variant, with weights, tokens and rotary tables."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diffattn.ops.positions import rotary_tables
from diffattn.variants.base import Draw, Mixer, MixerConfig, Site, Where, get
from support.implementations import RUNNING, home, narrowest

WIDTH = 32
SITE = Site(width=WIDTH, layer=1, layers=3, context=16)


def config_of(name: str, impl: str = "auto", **options: Any) -> MixerConfig:
    """Four output heads over two key/value groups: grouped queries wherever a test does not say otherwise."""
    fields = {"name": name, "heads": 4, "kv_heads": 2, "impl": impl, **narrowest(impl), **options}
    if name == "diff_hierarchical" and fields.get("head_dim"):
        # Its heads fill the width.
        fields["heads"] = WIDTH // (2 * fields["head_dim"])
        fields["kv_heads"] = min(fields["kv_heads"], fields["heads"])
    if name == "diff_temperature":
        # Early tokens read nearly 0, and the norm would multiply their rounding by up to 1 / sqrt(1e-5).
        fields = {"norm_eps": 1e-2, **fields}
    return MixerConfig.from_dict(fields)


def mixer_of(
    name: str, dtype: torch.dtype | None = None, site: Site = SITE, seed: int = 0, impl: str = "auto", **options: Any
) -> Mixer:
    """With starting weights, in float64 where the implementation serves it."""
    mixer = config_of(name, impl, **options).build(site)
    mixer.init_weights(Draw(seed))
    return mixer.to(dtype or home(impl).dtype)


def stirred_mixer_of(name: str, dtype: torch.dtype | None = None, seed: int = 0, **options: Any) -> Mixer:
    """As after some training: variants start with zeros behind which parameters have no effect yet."""
    mixer = mixer_of(name, torch.float64, seed=seed, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    mixer.advance(0.5)
    return mixer.to(dtype or home(options.get("impl", "auto")).dtype)


def served_by(name: str) -> list[str]:
    """The implementations that run here and serve this variant."""
    served = get(name).implementations
    return [impl for impl in RUNNING if served is None or impl in served]


def tokens_of(batch: int, tokens: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, tokens, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def tables_of(mixer: Mixer, positions: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return rotary_tables(positions, mixer.head_dim, dtype=dtype)


def where_of(mixer: Mixer, tokens: int, dtype: torch.dtype | None = None, **restrictions: Any) -> Where:
    """Causal, rotary at 0..tokens - 1 in the weights' dtype, and whatever else is given."""
    dtype = dtype or next(mixer.parameters()).dtype
    return Where(positions=tables_of(mixer, torch.arange(tokens), dtype), **restrictions)


def gradients(mixer: Mixer, x: Tensor, where: Where) -> dict[str, Tensor]:
    """Output and every gradient of sum(output * fixed random numbers)."""
    x = x.detach().requires_grad_()
    mixer.zero_grad()
    y = mixer(x, where)
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64).to(y.dtype)
    (y * cotangent).sum().backward()
    found = {"output": y.detach(), "x": x.grad}
    found.update((name, parameter.grad) for name, parameter in mixer.named_parameters())
    return {name: value for name, value in found.items() if value is not None}


def decoded(
    mixer: Mixer, x: Tensor, prefill: int, documents: Tensor | None = None, step_by: Callable[..., Tensor] | None = None
) -> Tensor:
    """Outputs of a prefill and single steps through a static cache; `step_by` is called for the single steps."""
    batch, tokens, _ = x.shape
    capacity = 12
    state = mixer.new_state(batch, capacity)
    if documents is not None:
        documents = torch.cat((documents, documents.new_zeros(batch, capacity - tokens)), dim=1)
    out, start = [], 0
    for step in [prefill] + [1] * (tokens - prefill):
        where = Where(
            positions=tables_of(mixer, torch.arange(start, start + step), x.dtype),
            key_lengths=torch.full((batch,), start + step),
            documents=documents,
        )
        run = mixer if start == 0 or step_by is None else step_by
        out.append(run(x[:, start : start + step], where, state))
        start += step
    return torch.cat(out, dim=1)
