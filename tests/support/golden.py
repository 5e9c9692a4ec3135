"""Golden vectors: the whole set where it lies beside the checkout, else the small cases kept in tests/golden."""

import functools
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from conftest import SHARED

_KEPT = Path(__file__).resolve().parents[1] / "golden"
_WHOLE = SHARED / "golden"
FOLDER = _WHOLE if _WHOLE.is_dir() else _KEPT


@functools.cache
def _index() -> dict[str, Any]:
    return json.loads((FOLDER / "index.json").read_text())


def cases(kind: str) -> list[dict[str, Any]]:
    """The entries of the index of one kind: v1_module, v2_module, baseline_module, v1_op."""
    return [case for case in _index()["cases"] if case["kind"] == kind]


def tensors(case: dict[str, Any]) -> dict[str, Tensor]:
    return load_file(FOLDER / case["file"])
