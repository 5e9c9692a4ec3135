"""What a training run is told: the model, the data, the training settings, the seed."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from diffattn.data import SyntheticData, TextData, data_from_dict
from diffattn.model.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of the training loop; tokens of a step = batch_size * accumulate * context."""

    steps: int = 350
    """Optimiser steps of the whole run."""
    batch_size: int = 8
    """Sequences in one forward pass (a micro-batch)."""
    accumulate: int = 1
    """Micro-batches whose gradients are summed before one optimiser step."""
    learning_rate: float = 5e-3
    """Highest learning rate, reached at the end of the warm-up."""
    warmup: float = 0.05
    """Share of the steps with a rising rate: a shorter run keeps the whole shape of the schedule."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """Shape of the decay from the warm-up to the last step."""
    final_lr_ratio: float = 0.1
    """Rate of the last step as a share of learning_rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's two moments."""
    weight_decay: float = 0.1
    """Decoupled decay per unit of rate, on matrices; embeddings, norms and vectors are left alone."""
    clip: float | None = 1.0
    """Largest global gradient norm; None does not clip."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 autocast where the machine has the instructions, else float32; weights stay float32."""
    compile: bool = False
    """Compile the model with torch.compile: costs 20 to 30 s, pays in long runs only."""
    checkpoint_activations: bool = False
    """Recompute each block in the backward pass: less memory, about a third more time."""
    evals: int = 8
    """Evaluations on the dev split, at equal distances in tokens; the last one is the final step's."""
    eval_tokens: int | None = 32768
    """Tokens of the dev split read by each evaluation; None reads all."""
    save_every: int = 0
    """Steps between checkpoints; 0 saves at the end and when interrupted."""
    keep: int = 2
    """Newest checkpoints that stay on disk."""
    log_every: int = 10
    """Steps between training rows in metrics.jsonl."""
    threads: int | None = None
    """CPU threads; None leaves torch's choice."""
    init_from: str | None = None
    """Model folder whose weights the run starts from; its model may have another attention than the run's, and another
    context: then also its rotary scaling."""
    train_only: tuple[str, ...] = ()
    """Parameters that are trained, by name or pattern ("layers.*.mixer.o.weight"), the others staying as they are.
    Empty: all; where the attention extends a loaded model (dex), what it adds."""
    tensorboard: bool = False
    """Write TensorBoard events into the run folder as well."""
    wandb: bool = False
    """Send the metrics to Weights & Biases as well."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "evals", "keep", "log_every"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        _require(self.save_every >= 0, "save_every", self.save_every, "0 or more steps")
        _require(self.learning_rate > 0, "learning_rate", self.learning_rate, "a positive number")
        _require(0 <= self.warmup < 1, "warmup", self.warmup, "a share of the steps, from 0 to below 1")
        _require(self.schedule in ("cosine", "linear"), "schedule", self.schedule, "cosine or linear")
        _require(0 <= self.final_lr_ratio <= 1, "final_lr_ratio", self.final_lr_ratio, "a share from 0 to 1")
        _require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            "betas",
            self.betas,
            "two numbers from 0 to below 1",
        )
        _require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        _require(self.clip is None or self.clip > 0, "clip", self.clip, "a positive number, or None")
        _require(
            self.precision in ("auto", "float32", "bfloat16"), "precision", self.precision, "auto, float32 or bfloat16"
        )
        _require(self.eval_tokens is None or self.eval_tokens >= 1, "eval_tokens", self.eval_tokens, "1 or more")
        _require(self.threads is None or self.threads >= 1, "threads", self.threads, "at least 1, or None")
        # As a tuple, text would be one pattern for each letter.
        listed = isinstance(self.train_only, tuple) and all(isinstance(name, str) for name in self.train_only)
        _require(listed, "train_only", self.train_only, 'a list of names or patterns, such as ["layers.0.*"]')

    @property
    def sequences(self) -> int:
        """Sequences of one optimiser step: batch_size * accumulate."""
        return self.batch_size * self.accumulate

    def to_dict(self) -> dict[str, Any]:
        """JSON form: every field."""
        return {**dataclasses.asdict(self), "betas": list(self.betas), "train_only": list(self.train_only)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainConfig":
        """Inverse of `to_dict`; ValueError names a field that does not exist."""
        unknown = sorted(set(values) - {entry.name for entry in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"train config has no field {unknown[0]!r}; remove it from the file")
        lists = [name for name in ("betas", "train_only") if isinstance(values.get(name), list)]
        tuples = {name: tuple(values[name]) for name in lists}
        return cls(**{**values, **tuples})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run: everything that its metrics depend on, and labels that they do not."""

    model: ModelConfig
    """Sizes and mixers."""
    data: TextData | SyntheticData
    """Where tokens come from."""
    train: TrainConfig
    """Settings of the loop."""
    seed: int = 0
    """Keys the initialisation and the order of the data."""
    labels: dict[str, str] = field(default_factory=dict)
    """Names for reports: plan, task, arm, budget."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form, as config.json of a run folder holds it."""
        return {
            "model": self.model.to_dict(),
            "data": self.data.to_dict(),
            "train": self.train.to_dict(),
            "seed": self.seed,
            "labels": dict(self.labels),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RunConfig":
        """Inverse of `to_dict`; other keys of a config.json (how it differs from a preset) are not read."""
        missing = [name for name in ("model", "data", "train") if name not in values]
        if missing:
            raise ValueError(f"run config lacks {missing[0]!r}; expected model, data, train, seed, labels")
        return cls(
            model=ModelConfig.from_dict(values["model"]),
            data=data_from_dict(values["data"]),
            train=TrainConfig.from_dict(values["train"]),
            seed=values.get("seed", 0),
            labels=values.get("labels", {}),
        )


def _require(fine: bool, name: str, value: object, expected: str) -> None:
    if not fine:
        raise ValueError(f"train.{name} is {value!r}; expected {expected}")
