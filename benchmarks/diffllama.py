"""How long does a training step take against Hugging Face's DiffLlama of the same shape?

    pip install transformers
    python benchmarks/diffllama.py [--threads 1] [--lengths 512 2048] [--seconds 20] [--json FILE]

Both models have the sizes of `quick`'s text task in version 1, are given the same random tokens, compute their own
loss, and are updated by the same clipped AdamW. Steps run in turn, round after round in one process; shown are medians,
also over the rounds of the time relative to ours. DiffLlama runs on torch's scaled_dot_product_attention, as it does
by itself, and in its eager form.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from diffattn import recipes
from diffattn.lab.bench import machine
from diffattn.lab.bench.step import training_step
from diffattn.lab.bench.timing import interleaved
from diffattn.lab.plan import resolve
from diffattn.model.config import ModelConfig
from diffattn.train.config import TrainConfig
from diffattn.train.optim import AdamW

TOKENS = 2048
"""Of a step, at every length."""


def main() -> None:
    """Print a table and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device, dtype = torch.device("cpu"), torch.float32
    task = recipes.get("quick").tasks[0]
    ours = resolve(task)["diff_v1"].model
    described = machine.describe(device, dtype, machine.measure_peak(device, dtype))
    described["transformers"] = transformers.__version__
    print(f"{described['processor']}, {options.threads} thread(s), torch {torch.__version__}, ", end="")
    print(f"transformers {transformers.__version__}, {described['date']}")
    rows = []
    for length in options.lengths:
        config = dataclasses.replace(ours, context=length)
        sequences = max(1, TOKENS // length)
        steps = {"ours": training_step(config, task.train, sequences, device, dtype)}
        for attention in ("sdpa", "eager"):
            steps[f"DiffLlama, {attention}"] = diffllama_step(config, task.train, sequences, attention)
        for step in steps.values():
            step()
        timings = interleaved(steps, options.seconds, device)
        state = "quiet" if timings.quiet else "other load"
        print(f"\n{sequences} x {length} tokens, {timings.rounds} rounds ({state})")
        found = {}
        for name in steps:
            ratio = timings.ratio(name, "ours")
            found[name] = {"milliseconds": 1e3 * timings.median(name), "ratio_to_ours": ratio}
            print(f"  {name:<20}{1e3 * timings.median(name):>10.1f} ms{ratio:>8.2f}")
        rounds = {"rounds": timings.rounds, "disturbed": timings.disturbed, "quiet": timings.quiet}
        rows.append({"context": length, "batch_size": sequences, **rounds, "models": found})
    if options.json:
        options.json.write_text(json.dumps({"machine": described, "rows": rows}, indent=1) + "\n")


def diffllama_step(config: ModelConfig, train: TrainConfig, sequences: int, attention: str) -> Callable[[], None]:
    """A step of a DiffLlama of this shape, whose heads are counted as a Transformer's: two for an output head."""
    mixer: dict[str, Any] = config.mixer.to_dict()
    same = transformers.DiffLlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.width,
        intermediate_size=config.ffn_width,
        num_hidden_layers=config.layers,
        num_attention_heads=2 * mixer["heads"],
        num_key_value_heads=2 * (mixer["kv_heads"] or mixer["heads"]),
        max_position_embeddings=config.context,
        tie_word_embeddings=config.tied_embeddings,
        attn_implementation=attention,
        use_cache=False,
    )
    model = transformers.DiffLlamaForCausalLM(same).train()
    optimiser = AdamW(model, betas=train.betas, weight_decay=train.weight_decay)
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (sequences, config.context), generator=source)

    def step() -> None:
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimiser.step(loss.detach(), train.learning_rate, train.clip)

    return step


if __name__ == "__main__":
    main()
