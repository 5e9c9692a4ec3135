"""The learning rate as a function of the step; gradient clipping; AdamW."""

import math
from typing import Literal

import torch
from torch import Tensor, nn


def learning_rate(
    step: int,
    *,
    steps: int,
    peak: float,
    warmup: float = 0.0,
    final_ratio: float = 0.1,
    schedule: Literal["cosine", "linear"] = "cosine",
) -> float:
    """Rate of update number `step`, from 1 to `steps`.

    It rises linearly over the first round(warmup * steps) updates, the last of which has the peak, then falls; update
    `steps` has exactly peak * final_ratio.
    """
    rising = min(round(warmup * steps), steps - 1)
    if step <= rising:
        return peak * step / rising
    progress = (step - rising) / (steps - rising)
    left = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (final_ratio + (1 - final_ratio) * left)


def decayed(model: nn.Module) -> set[str]:
    """Names of the parameters that weight decay pulls towards 0: matrices (two axes or more) outside embeddings.

    A vector scales or shifts channels, and 0 is no natural value for it. An embedding's row gets a gradient only when
    its token occurs: decay would shrink the rare tokens' rows for being rare. A tied head is the embedding, so it is
    left alone too; an untied head is a matrix like the others.
    """
    embeddings = {
        id(weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for weight in module.parameters(recurse=False)
    }
    return {name for name, weight in model.named_parameters() if weight.ndim >= 2 and id(weight) not in embeddings}


class AdamW:
    """AdamW (arXiv 1711.05101) on torch's fused kernel, with updates that a non-finite gradient cannot reach.

    The same kernel and numbers as `torch.optim.AdamW(fused=True)`, whose constructor imports the compiler: 1.7 s of
    every process, more than ten steps of a small run. What is added: once a loss or gradient norm is not finite, this
    and all later updates are skipped, on the device and without asking it, so that weights and moments stay as they
    were until somebody reads `failed`; and the state is kept by the names of the weights. Weights that require no
    gradient have none.
    """

    def __init__(self, model: nn.Module, *, betas: tuple[float, float], weight_decay: float, eps: float = 1e-8) -> None:
        self.weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.first = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.second = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        device = next(iter(self.weights.values())).device
        self.updates = torch.zeros((), device=device)
        self.bad = torch.zeros((), device=device)
        self.betas, self.eps = betas, eps
        matrices = decayed(model)
        self.groups = (
            (weight_decay, [name for name in self.weights if name in matrices]),
            (0.0, [name for name in self.weights if name not in matrices]),
        )

    @torch.no_grad()
    def step(self, loss: Tensor, rate: float, clip: float | None) -> Tensor:
        """Clip the gradients to the norm `clip`, update the weights, drop the gradients.

        `loss` is only looked at for being finite. Gives the global gradient norm before clipping, a 0-dim tensor.
        """
        weights = [weight for weight in self.weights.values() if weight.grad is not None]
        norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
        if clip is not None:
            nn.utils.clip_grads_with_norm_(weights, clip, norm)
        self.bad = torch.maximum(self.bad, (~torch.isfinite(loss + norm)).to(self.bad.dtype))
        self.updates += 1  # the kernel reads the number of this update
        for decay, names in self.groups:
            self._update([name for name in names if self.weights[name].grad is not None], rate, decay)
        self.updates -= self.bad
        for weight in weights:
            weight.grad = None
        return norm

    def _update(self, names: list[str], rate: float, decay: float) -> None:
        if not names:
            return
        torch.ops.aten._fused_adamw_(
            [self.weights[name] for name in names],
            [self.weights[name].grad for name in names],
            [self.first[name] for name in names],
            [self.second[name] for name in names],
            [],
            [self.updates] * len(names),
            lr=rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            found_inf=self.bad,
        )

    @property
    def failed(self) -> bool:
        """Whether some update since the start was skipped because of a non-finite value; waits for the device."""
        return bool(self.bad)

    def state(self) -> dict[str, Tensor]:
        """Everything to save: `first.<weight>`, `second.<weight>` and the number of updates."""
        moments = {f"first.{name}": value for name, value in self.first.items()}
        moments |= {f"second.{name}": value for name, value in self.second.items()}
        return {**moments, "updates": self.updates}

    @torch.no_grad()
    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` gave, in place; KeyError where a tensor is missing."""
        for name, value in self.state().items():
            value.copy_(state[name])
