"""Is the memory that `diffattn cost` counts the memory that a process takes?

    python benchmarks/footprint.py [--only 0 1 ...] [--as-trained] [--json FILE]

Each case runs in a process of its own, one after another: a small model first, so that libraries have what they want,
then a training step of the trainer's making, or a prompt and two new tokens. Measured is the process's peak of resident
memory less what it had before the model was built, with an allocator that maps every block above 64 KiB by itself and
so returns it when it is freed. The trainer's allocator keeps freed memory and so takes more: --as-trained tells how
much. The largest case takes 1.5 GB, and all take a few minutes on one free core.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from diffattn.lab import footprint
from diffattn.lab.footprint import Setting
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import build
from diffattn.ops.loss import cross_entropy
from diffattn.train import profile
from diffattn.train.optim import AdamW
from diffattn.variants.base import MixerConfig

# Much memory for little arithmetic: large matrices and few tokens, or narrow layers and many tokens.
WIDE = {"width": 1024, "layers": 5, "ffn_width": 2731, "vocab_size": 16384, "context": 64}
LONG = {"width": 64, "layers": 24, "ffn_width": 171, "vocab_size": 1024, "context": 128}
MAPS = {"width": 64, "layers": 12, "ffn_width": 171, "vocab_size": 1024, "context": 512}
LARGE = {"width": 1024, "layers": 10, "ffn_width": 2731, "vocab_size": 131072, "context": 128}
CACHED = {"width": 128, "layers": 8, "ffn_width": 341, "vocab_size": 4096, "context": 256}


def model(sizes: dict[str, int], variant: str, heads: int, impl: str = "auto") -> ModelConfig:
    """A model of these sizes with this attention."""
    mixer = MixerConfig.from_dict({"name": variant, "heads": heads, "impl": impl})
    return ModelConfig.from_dict({**sizes, "mixer": mixer.to_dict()})


CASES: list[tuple[str, ModelConfig, Setting]] = [
    ("training", model(WIDE, "softmax", 16), Setting(batch_size=1)),
    ("training", model(WIDE, "diff_v1", 8), Setting(batch_size=1, accumulate=2)),
    ("training", model(LONG, "softmax", 2), Setting(batch_size=80)),
    ("training", model(LONG, "diff_v1", 1), Setting(batch_size=80)),
    ("training", model(LONG, "diff_v2", 2), Setting(batch_size=80)),
    ("training", model(MAPS, "diff_v1", 1, "reference"), Setting(batch_size=16)),
    ("inference", model(LARGE, "softmax", 16), Setting(batch_size=1)),
    ("inference", model(LARGE, "diff_v2", 16), Setting(batch_size=1)),
    ("inference", model(CACHED, "diff_v1", 2), Setting(batch_size=288)),
]


def main() -> None:
    """Print a row per case, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the cases, from 0")
    parser.add_argument("--as-trained", action="store_true", help="also with the trainer's allocator")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        print(json.dumps(measured(json.load(sys.stdin))))
        return
    described = {"torch": torch.__version__, "processor": profile.processor(torch.device("cpu"))}
    described |= {"platform": platform.platform(), "threads": torch.get_num_threads()}
    found = []
    for number in asked.only or range(len(CASES)):
        mode, config, setting = CASES[number]
        counted = (footprint.training if mode == "training" else footprint.inference)(config, setting).peak
        job = {"mode": mode, "model": config.to_dict(), "setting": asdict(setting)}
        row = {**job, "parameters": config.cost().parameters, "counted": counted, "measured": process(job, keep=False)}
        if asked.as_trained and mode == "training":
            row["measured_as_trained"] = process(job, keep=True)
        found.append(row)
        print(line(number, row), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps({**described, "cases": found}, indent=1) + "\n", encoding="utf-8")


def line(number: int, row: dict[str, Any]) -> str:
    """Counted and measured bytes, and by how much the count is off."""
    mixer, setting = row["model"]["mixer"], row["setting"]
    off = row["counted"] / row["measured"] - 1
    kept = f"{row['measured_as_trained'] / 1e9:6.2f} GB as trained" if "measured_as_trained" in row else ""
    how = f"{setting['batch_size']} x {row['model']['context']}"
    how += f" x {setting['accumulate']}" * (setting["accumulate"] > 1)
    how += ", checkpointed" * setting["checkpoint_activations"]
    return (
        f"{number:2d} {row['mode']:10s}{mixer['name']:9s}{mixer['impl']:10s}{row['parameters'] / 1e6:6.1f} M  {how:24s}"
        f"counted {row['counted'] / 1e9:5.2f} GB, measured {row['measured'] / 1e9:5.2f} GB ({off:+.1%}) {kept}"
    )


def process(job: dict[str, Any], keep: bool) -> int:
    """Measure in a process of its own."""
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    if not keep:
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    done = subprocess.run(
        [sys.executable, __file__, "--worker"],
        input=json.dumps({**job, "keep": keep}),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def measured(job: dict[str, Any]) -> int:
    """Most resident bytes above those before the model was built."""
    if job["keep"]:
        profile.keep_freed_memory()
    config, setting = ModelConfig.from_dict(job["model"]), Setting(**job["setting"])
    run = train if job["mode"] == "training" else generate
    small = {**job["model"], "layers": 1, "width": 128, "ffn_width": 128, "context": 32}
    small["mixer"] = {**small["mixer"], "heads": 2}
    run(ModelConfig.from_dict(small), setting)
    cpu = torch.device("cpu")
    profile.reset_peak_memory(cpu)
    before = profile.peak_memory(cpu)
    run(config, setting)
    after = profile.peak_memory(cpu)
    assert before is not None and after is not None, "this platform does not tell a process's memory"
    return after - before


def train(config: ModelConfig, setting: Setting) -> None:
    """A step as the trainer makes it."""
    model = build(config)
    model.checkpoint_activations = setting.checkpoint_activations
    optimiser = AdamW(model, betas=(0.9, 0.95), weight_decay=0.1)
    # As after a first step: zeros that nobody has written take no memory yet.
    for moment in (*optimiser.first.values(), *optimiser.second.values()):
        moment.fill_(0.0)
    loss = torch.zeros(())
    for _ in range(setting.accumulate):
        tokens = torch.randint(config.vocab_size, (setting.batch_size, config.context))
        share = cross_entropy(model.hidden(tokens), model.head, tokens)[0] / tokens.numel()
        share.backward()
        loss += share.detach()
    optimiser.step(loss, 1e-4, 1.0)


def generate(config: ModelConfig, setting: Setting) -> None:
    """A prompt and two tokens."""
    tokens = torch.randint(config.vocab_size, (setting.batch_size, config.context - 2))
    build(config).generate(tokens, max_new_tokens=2)


if __name__ == "__main__":
    main()
