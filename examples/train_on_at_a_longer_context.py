"""Training goes on at twice the context: each attention from its own model, for the same steps, with the same scaling.

These are the commands of a shell. The last of each reads a model with a sixteenth of its context up to twice of it.
"""

import tempfile

from diffattn.cli import main

SIZES = "--model.width 32 --model.layers 2 --model.ffn-width 64 --train.batch-size 4 --train.eval-tokens 2048"
LONGER = "--model.context 128 --model.rope-scaling yarn --model.rope-factor 2"


def diffattn(command: str) -> None:
    """Run a command as a shell would."""
    if main(command.split()):
        raise SystemExit(f"failed: diffattn {command}")


with tempfile.TemporaryDirectory() as runs:
    for variant in ("softmax", "diff_v1"):
        short, longer = f"{runs}/{variant}", f"{runs}/{variant}-longer"
        diffattn(f"train --variant {variant} {SIZES} --model.context 64 --train.steps 20 --out {short}")
        start = f"--train.init-from {short}/model --train.steps 10"
        diffattn(f"train --variant {variant} {SIZES} {LONGER} {start} --out {longer}")
        diffattn(f"eval {longer}/model --tasks long_context --long-context.beyond 2 --limit 8")
