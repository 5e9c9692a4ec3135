"""What each way of telling positions does beyond the context of training."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diffattn.model.config import ModelConfig, Positions
from diffattn.model.decoder import Decoder, build
from diffattn.variants.base import MixerConfig
from support.text import documents

CONTEXT = 32


def windows(ids: Tensor, starts: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Inputs and the tokens after them, each [B, tokens]."""
    rows = ids[starts[:, None] + torch.arange(tokens + 1)]
    return rows[:, :-1], rows[:, 1:]


def trained(variant: str, positions: Positions, ids: Tensor) -> Decoder:
    mixer = MixerConfig.from_dict({"name": variant, "heads": 4})
    sizes = {"vocab_size": 256, "width": 64, "layers": 2, "ffn_width": 128, "context": CONTEXT}
    model = build(ModelConfig(**sizes, mixer=mixer, positions=positions))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    draw = torch.Generator().manual_seed(0)
    for _ in range(300):
        x, y = windows(ids, torch.randint(len(ids) - CONTEXT - 1, (16,), generator=draw), CONTEXT)
        optimiser.zero_grad()
        F.cross_entropy(model(x).transpose(1, 2), y).backward()
        optimiser.step()
    return model


def excess_beyond_the_context(model: Decoder, ids: Tensor) -> float:
    """Loss in nats at 2 to 4 contexts, above that in the second half of the context."""
    x, y = windows(ids, torch.arange(0, len(ids) - 4 * CONTEXT - 1, 4 * CONTEXT), 4 * CONTEXT)
    with torch.no_grad():
        loss = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(0)
    return float(loss[2 * CONTEXT :].mean() - loss[CONTEXT // 2 : CONTEXT].mean())


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["softmax", "diff_v1"])
def test_alibi_reads_on_where_rotary_breaks(variant: str) -> None:
    """In trials over two seeds alibi gave -0.04 to 0 nats, rotary 0.3 to 0.5 with one map and above 1 with two."""
    ids = torch.tensor(list("\n".join(documents(400)).encode()))
    train, held_out = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]
    assert excess_beyond_the_context(trained(variant, "alibi", train), held_out) < 0.05
    assert excess_beyond_the_context(trained(variant, "rope", train), held_out) > 0.15
