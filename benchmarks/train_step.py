"""What is a training step made of, for the small models that comparisons run dozens of?

    python benchmarks/train_step.py [--threads 1] [--rounds 20] [--json benchmarks/train_step.json]

Every part of a step of train/trainer.py is timed by itself, round after round, in CPU seconds of this process, so that
other load on the machine does not count; shown are medians in milliseconds and shares of the step. Below the line: what
a run pays now and then. "one document": the same step without document ids, which is what the mask costs.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from diffattn.data import Data, SyntheticData, TextData, open_data
from diffattn.evals.perplexity import evaluate
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import build
from diffattn.ops.loss import cross_entropy
from diffattn.train import checkpoint, profile
from diffattn.train.optim import AdamW
from diffattn.variants.base import MixerConfig

MIXERS = {
    "softmax": {"name": "softmax", "heads": 6},
    "softmax + norm": {"name": "softmax", "heads": 6, "norm": True},
    "diff_v1": {"name": "diff_v1", "heads": 3},
    "diff_v2": {"name": "diff_v2", "heads": 6, "kv_heads": 3},
}


def main() -> None:
    """Print one table per task and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device("cpu")
    peak = profile.peak_flops(device, torch.float32, arguments.threads)
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "processor": profile.processor(device),
        "platform": platform.platform(),
        "threads": arguments.threads,
        "peak_gflops": peak / 1e9,
    }
    print(f"{found['processor']}, {arguments.threads} thread(s), torch {torch.__version__}, {peak / 1e9:.0f} GFLOP/s")
    for task, (data_config, context, batch_size, sizes) in TASKS.items():
        data = open_data(data_config, context=context, batch_size=batch_size, seed=0)
        print(f"\n{task}: width {sizes['width']}, {sizes['layers']} layers, batch {batch_size} x {context}")
        columns = {}
        for name, mixer in MIXERS.items():
            config = ModelConfig(
                vocab_size=data.vocab_size, context=context, mixer=MixerConfig.from_dict(mixer), **sizes
            )
            columns[name] = measure(config, data, arguments.rounds)
        show(columns)
        found[task] = columns
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


TASKS: dict[str, tuple[TextData | SyntheticData, int, int, dict[str, Any]]] = {
    "text": (TextData(), 256, 8, {"width": 96, "layers": 3, "ffn_width": 256}),
    "recall": (SyntheticData(task="recall"), 64, 64, {"width": 96, "layers": 2, "ffn_width": 256, "token_shift": True}),
}
STEP = ("batch", "forward", "loss", "backward", "clip + AdamW")


def measure(config: ModelConfig, data: Data, rounds: int) -> dict[str, float]:
    """Median CPU milliseconds of each part."""
    model = build(config)
    optimizer = AdamW(model, betas=(0.9, 0.95), weight_decay=0.1)
    taken: dict[str, list[float]] = {}

    def timed(part: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = work()
        taken.setdefault(part, []).append((time.process_time() - start) * 1e3)
        return result

    for step in range(rounds + 2):  # the first two warm up
        batch = timed("batch", lambda step=step: data.batch(step))
        hidden = timed("forward", lambda batch=batch: model.hidden(batch.tokens, batch.documents))
        total, count = timed("loss", lambda h=hidden, b=batch: cross_entropy(h, model.head, b.targets))
        loss = total / count
        timed("backward", loss.backward)
        timed("clip + AdamW", lambda loss=loss: optimizer.step(loss.detach(), 1e-3, 1.0))
    with tempfile.TemporaryDirectory() as folder:
        for step in range(3):
            progress = checkpoint.Progress(step, 0, 0.0, None)
            timed("checkpoint", lambda p=progress: checkpoint.save(Path(folder), model, optimizer, p, {}, 1))
            timed("evaluation, 32k tokens", lambda: evaluate(model, data.evaluation("dev", 32768), data.token_bytes))
            timed("forward, one document", lambda: model.hidden(batch.tokens))
    return {part: statistics.median(times[2:]) for part, times in taken.items()}


def show(columns: dict[str, dict[str, float]]) -> None:
    """One row per part, one column per arm: milliseconds and share of the step."""
    print(f"{'ms of CPU time (share of the step)':36s}" + "".join(f"{name:>18s}" for name in columns))
    sums = {name: sum(column[part] for part in STEP) for name, column in columns.items()}
    for part in STEP:
        cells = (f"{column[part]:9.2f} ({column[part] / sums[name]:5.1%})" for name, column in columns.items())
        print(f"{part:36s}" + "".join(f"{cell:>18s}" for cell in cells))
    print(f"{'step':36s}" + "".join(f"{total:9.2f}         " for total in sums.values()))
    for part in [part for part in next(iter(columns.values())) if part not in STEP]:
        print(f"{part:36s}" + "".join(f"{column[part]:9.2f}         " for column in columns.values()))


if __name__ == "__main__":
    main()
