"""A short fine-tuning of a copy of a model: plain AdamW, for what it changes, not for the best model."""

import copy
from dataclasses import dataclass

import numpy as np
import torch

from diffattn.evals.pieces import as_rows
from diffattn.model.decoder import Decoder
from diffattn.ops.loss import cross_entropy


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How a model is fine-tuned."""

    steps: int = 50
    """Optimiser steps; 0: none."""
    batch_size: int = 8
    """Pieces of a step, each of about the model's context."""
    learning_rate: float = 1e-3
    """Reached over the first tenth of the steps, then constant; no weight decay, gradients clipped at 1."""

    def check(self) -> None:
        """Raise ValueError where a setting is out of range."""
        if self.steps < 0 or self.batch_size < 1 or not self.learning_rate > 0:
            raise ValueError(f"{self}: steps are 0 or more, batch_size at least 1, learning_rate above 0")


def tuned(model: Decoder, ids: list[np.ndarray], tuning: Tuning, seed: int) -> Decoder:
    """Give a float32 copy of the model, trained on texts in an order that the seed draws, epoch after epoch.

    ids: their tokens. ValueError: no texts, settings out of range.
    """
    tuning.check()
    if not ids:
        raise ValueError("there is no text to fine-tune on: its training split is empty")
    student = copy.deepcopy(model).float().train()
    device = student.head.device
    optimiser = torch.optim.AdamW(student.parameters(), tuning.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    order = np.concatenate(
        [
            np.random.default_rng([seed, epoch]).permutation(len(ids))
            for epoch in range(1 + tuning.steps * tuning.batch_size // len(ids))
        ]
    )
    for step in range(tuning.steps):
        for group in optimiser.param_groups:
            group["lr"] = tuning.learning_rate * min(1.0, 10 * (step + 1) / tuning.steps)
        some = order[step * tuning.batch_size : (step + 1) * tuning.batch_size]
        tokens, targets = (
            torch.from_numpy(part).to(device) for part in as_rows([ids[i] for i in some], model.config.context)
        )
        total, count = cross_entropy(student.hidden(tokens), student.head, targets)
        optimiser.zero_grad()
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimiser.step()
    return student.eval()
