"""The training loop, read top to bottom: open, then step, log, evaluate, save, and an end of three kinds."""

import json
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from diffattn.data import Batch, open_data
from diffattn.evals.outliers import outliers
from diffattn.evals.perplexity import evaluate
from diffattn.files import write_json
from diffattn.hub import convert
from diffattn.ops.loss import cross_entropy
from diffattn.train import checkpoint, profile
from diffattn.train.config import RunConfig
from diffattn.train.metrics import Display, Metrics, open_trackers
from diffattn.train.nonfinite import locate
from diffattn.train.optim import AdamW, learning_rate
from diffattn.train.start import environment, identity, starting_model, tokenizer_file
from diffattn.train.stopping import Interrupts, plain_disk_errors

OUTLIER_TOKENS = 2048
"""Most tokens that an evaluation measures outliers on."""
OUTLIER_SHARE = 200
"""All evaluations together measure at most one in so many of the tokens that are trained on."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: status, completed steps, last dev loss in nats per token (None before the first evaluation)."""

    status: Literal["finished", "non-finite", "interrupted"]
    step: int
    loss: float | None


def train(run: RunConfig, folder: Path, *, quiet: bool = False) -> Outcome:
    """Train `run` in `folder`; goes on from the newest checkpoint there, does nothing where `done` exists.

    The folder then holds config.json, environment.json, metrics.jsonl, checkpoints/, model/, evals/dev.json and done.
    Ctrl-C and SIGTERM save and return. ValueError: settings or data that cannot be used, a folder of another run, a
    disk that is full or read-only.
    """
    folder = Path(folder)
    recorded = _recorded(run, folder)
    if recorded is not None:
        return recorded
    profile.keep_freed_memory()
    with profile.cpu_threads(run.train.threads) as threads:
        loop = _Loop(run, folder, threads)
        with ExitStack() as stack:
            stack.enter_context(plain_disk_errors(folder))
            loop.open(stack, quiet)
            return loop.steps(stack.enter_context(Interrupts()))


def _recorded(run: RunConfig, folder: Path) -> Outcome | None:
    """The outcome of a run that has ended; ValueError where the folder holds the end of another one."""
    if not (folder / "done").exists():
        return None
    if not (folder / "config.json").exists():
        raise ValueError(
            f"{folder} has ended a run (there is a `done`), but its config.json is gone; choose another folder"
        )
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    checkpoint.refuse_difference(identity(saved), identity(run.to_dict()), f"the finished run {folder}")
    done = json.loads((folder / "done").read_text(encoding="utf-8"))
    return Outcome(done["status"], done["step"], done["loss"])


class _Loop:
    """One run in one folder. Nothing is written before `open`."""

    def __init__(self, run: RunConfig, folder: Path, threads: int) -> None:
        config = run.train
        self.run, self.config, self.folder, self.threads = run, config, folder, threads
        self.device = profile.choose_device()
        self.dtype = profile.choose_precision(config.precision, self.device)
        self.data = open_data(run.data, context=run.model.context, batch_size=config.sequences, seed=run.seed)
        self.model = starting_model(run, self.data, self.device)
        self.model.checkpoint_activations = config.checkpoint_activations
        self.hidden = torch.compile(self.model.hidden) if config.compile else self.model.hidden
        self.optimizer = AdamW(self.model, betas=config.betas, weight_decay=config.weight_decay)
        self.milestones = {round(config.steps * part / config.evals) for part in range(1, config.evals + 1)}
        self.step_tokens = config.sequences * run.model.context
        self.token_flops = run.model.cost().flops_algebra

    def open(self, stack: ExitStack, quiet: bool) -> None:
        """Go on from the newest checkpoint, or begin; write what describes the run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        precision = str(self.dtype).removeprefix("torch.")
        self.fingerprint = {**identity(self.run.to_dict()), "data": self.data.fingerprint, "precision": precision}
        saved = checkpoint.found(self.folder / "checkpoints")
        progress = checkpoint.Progress(step=0, metrics_bytes=0, seconds=0.0, loss=None)
        if saved:
            progress = checkpoint.restore(saved[-1], self.model, self.optimizer, self.fingerprint)
        else:
            write_json(self.folder / "config.json", self.run.to_dict())
        self.step, self.seconds, self.loss = progress.step, progress.seconds, progress.loss
        self.model.advance(self.step / self.config.steps)
        self.peak = profile.peak_flops(self.device, self.dtype, self.threads)
        described = environment(self.device, precision, self.threads, self.peak)
        write_json(self.folder / "environment.json", described)
        trackers = open_trackers(self.run, self.folder, self.step)
        self.metrics = Metrics(self.folder / "metrics.jsonl", progress.metrics_bytes, trackers)
        stack.callback(self.metrics.close)
        self.display = Display(self.config.steps, self.step, quiet)
        stack.callback(self.display.close)
        if saved:
            self.display.say(f"going on from {saved[-1]}")
        self.logged = (self.step, self.seconds)
        profile.reset_peak_memory(self.device)

    def steps(self, interrupts: Interrupts) -> Outcome:
        """Train until the last step, an interruption or a loss that is not finite."""
        config = self.config
        self.clock = time.perf_counter()
        while self.step < config.steps:
            loss, norm, rate = self._update()
            self.step += 1
            self.model.advance(self.step / config.steps)
            last = self.step == config.steps
            stop = interrupts.asked and not last
            log = last or self.step % config.log_every == 0
            save = last or stop or (config.save_every > 0 and self.step % config.save_every == 0)
            # On a GPU looking at a number waits for the queue of work, so it is done only where something is written.
            if (self.device.type == "cpu" or log or save or self.step in self.milestones) and self.optimizer.failed:
                return self._not_finite()
            if log:
                self._log(loss, norm, rate)
            self.display.advance(self.step)
            if self.step in self.milestones and not self._evaluate():
                return self._broken(self.step, "the dev loss after step", self._dev())
            if save:
                path = self._save()
                if stop:
                    self.display.say(
                        f"stopped at step {self.step} of {config.steps}, saved in {path}; "
                        "the same command goes on from there"
                    )
                    return Outcome("interrupted", self.step, self.loss)
        return self._finish()

    def _update(self) -> tuple[Tensor, Tensor, float]:
        """One optimiser step; gives the loss per token, the gradient norm (both still on the device) and the rate."""
        config = self.config
        batch = self.data.batch(self.step)
        scored = max(1, int((batch.targets != -100).sum()))
        loss = torch.zeros((), device=self.device)
        for part in self._parts(batch):
            share = self._loss(part) / scored
            share.backward()
            loss += share.detach()
        rate = learning_rate(
            self.step + 1,
            steps=config.steps,
            peak=config.learning_rate,
            warmup=config.warmup,
            final_ratio=config.final_lr_ratio,
            schedule=config.schedule,
        )
        return loss, self.optimizer.step(loss, rate, config.clip), rate

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """The micro-batches of a batch."""
        for parts in zip(*(tensor.split(self.config.batch_size) for tensor in batch), strict=True):
            yield Batch(*parts)

    def _dev(self) -> Iterator[Batch]:
        """The dev split's micro-batches, as many as an evaluation reads."""
        for batch in self.data.evaluation("dev", self.config.eval_tokens):
            yield from self._parts(batch)

    def _loss(self, part: Batch) -> Tensor:
        """Summed loss of a micro-batch, nats."""
        tokens, targets, documents = (
            None if tensor is None else tensor.to(self.device, non_blocking=True)
            for tensor in (part.tokens, part.targets, part.mixed)
        )
        assert tokens is not None and targets is not None
        with self._autocast():
            return cross_entropy(self.hidden(tokens, documents), self.model.head, targets)[0]

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def _log(self, loss: Tensor, norm: Tensor, rate: float) -> None:
        row = self._row("train", loss=float(loss), learning_rate=rate, grad_norm=float(norm))
        self._stop_clock()
        steps, seconds = self.step - self.logged[0], self.seconds - self.logged[1]
        speed = steps * self.step_tokens / seconds
        row["machine"] = {
            "seconds": self.seconds,
            "tokens_per_second": speed,
            "share_of_peak": speed * self.token_flops / self.peak,
            "peak_memory_bytes": profile.peak_memory(self.device),
        }
        self.logged = (self.step, self.seconds)
        self._write(row, seconds / steps)

    def _evaluate(self) -> bool:
        """Dev loss and λ of each layer, outside the training clock; the last one is kept as evals/dev.json.

        False, and nothing is written, where the loss is not finite: weights may be so large after an update whose own
        loss was finite.
        """
        self._stop_clock()
        batches = list(self._dev())
        with self._autocast():
            heldout = evaluate(self.model, batches, self.data.token_bytes)
            if not math.isfinite(heldout.loss):
                return False
            tokens, _, documents = (tensor.to(self.device) for tensor in batches[0])
            lambdas = self.model.lambdas(tokens, documents)
            massive = outliers(self.model, [self._watched(batches)]).to_dict()
        del massive["layers"]
        self.loss = heldout.loss
        row = self._row("eval", split="dev", loss=heldout.loss, bits_per_byte=heldout.bits_per_byte)
        row |= {"accuracy": heldout.accuracy, "count": heldout.count, "machine": {"seconds": self.seconds}}
        row["outliers"] = massive
        self._write(row, 0.0)
        row = self._row("lambda", layers=[None if lam is None else _summary(lam) for lam in lambdas])
        del row["flops"]
        self._write(row, 0.0)
        if self.step == self.config.steps:
            (self.folder / "evals").mkdir(exist_ok=True)
            write_json(self.folder / "evals" / "dev.json", heldout.to_dict())
        self.clock = time.perf_counter()
        return True

    def _watched(self, batches: list[Batch]) -> Batch:
        """Of an evaluation's windows, those in which outliers are measured: evenly spread, at least one."""
        config = self.config
        tokens = min(OUTLIER_TOKENS, config.steps * self.step_tokens // (OUTLIER_SHARE * config.evals))
        whole = Batch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
        windows, length = whole.tokens.shape
        wanted = min(windows, max(1, tokens // length))
        return Batch(*(part[torch.arange(wanted) * windows // wanted] for part in whole))

    def _row(self, kind: str, **values: Any) -> dict[str, Any]:
        tokens = self.step * self.step_tokens
        return {"kind": kind, "step": self.step, "tokens": tokens, "flops": tokens * self.token_flops, **values}

    def _write(self, row: dict[str, Any], step_seconds: float) -> None:
        self.metrics.write(row)
        self.display.row(row, step_seconds)

    def _stop_clock(self) -> None:
        now = time.perf_counter()
        self.seconds += now - self.clock
        self.clock = now

    def _save(self) -> Path:
        self._stop_clock()
        progress = checkpoint.Progress(self.step, self.metrics.sync(), self.seconds, self.loss)
        path = checkpoint.save(
            self.folder / "checkpoints", self.model, self.optimizer, progress, self.fingerprint, self.config.keep
        )
        self.clock = time.perf_counter()
        return path

    def _finish(self) -> Outcome:
        convert.save(self.model, self.folder / "model", tokenizer=tokenizer_file(self.data))
        self._done("finished", self.step, layer=None, back_to=None)
        return Outcome("finished", self.step, self.loss)

    def _not_finite(self) -> Outcome:
        """End before a bad step; the weights are still those before it."""
        good = int(self.optimizer.updates)
        self.model.advance(good / self.config.steps)
        self._stop_clock()
        return self._broken(good + 1, "step", self._parts(self.data.batch(good)))

    def _broken(self, step: int, what: str, parts: Iterable[Batch]) -> Outcome:
        """Name step, layer and the checkpoint to go back to; `parts` show it again."""
        layer = locate(self.model, [lambda part=part: self._loss(part) for part in parts])
        saved = checkpoint.found(self.folder / "checkpoints")
        back_to = str(saved[-1].relative_to(self.folder)) if saved else None
        where = f"go back to {saved[-1]}" if saved else "no checkpoint was saved before it, start again"
        self.display.say(
            f"{what} {step} of {self.config.steps} is not finite; it began in {layer}. "
            f"In a new folder with a lower train.learning_rate or train.clip, {where}"
        )
        self._done("non-finite", step, layer=layer, back_to=back_to)
        return Outcome("non-finite", step, None)

    def _done(self, status: str, step: int, *, layer: str | None, back_to: str | None) -> None:
        self.metrics.sync()
        write_json(
            self.folder / "done",
            {
                "status": status,
                "step": step,
                "loss": self.loss if status == "finished" else None,
                "seconds": self.seconds,
                "tokens": step * self.step_tokens,
                "layer": layer,
                "checkpoint": back_to,
            },
        )


def _summary(lam: Tensor) -> dict[str, Any]:
    """A layer's λ over its heads and, where it depends on them, tokens; each head's mean where there are several."""
    lam = lam.float()
    values = torch.stack((lam.mean(), lam.min(), lam.max(), (lam < 0).float().mean(), (lam > 1).float().mean()))
    summary: dict[str, Any] = dict(zip(("mean", "min", "max", "below_0", "above_1"), values.tolist(), strict=True))
    if lam.dim() and lam.shape[-1] > 1:
        summary["heads"] = lam.reshape(-1, lam.shape[-1]).mean(0).tolist()
    return summary
