#!/usr/bin/env bash
# Everything that must be looked at on a machine with a GPU, in one command and less than eight minutes: are the Triton
# kernels right there, and how fast are they. The machine needs Python 3.11 or newer, torch, triton and numpy; no network,
# nothing installed of this project. Tables go to the terminal, and as JSON to the folder $OUT if it is set.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=src:tests PYTHONUNBUFFERED=1
python3 tests/gpu/correctness.py
python3 tests/gpu/timings.py --seconds $((400 - SECONDS))
