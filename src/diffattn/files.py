"""Files that appear whole or not at all, and where two JSON values differ."""

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes `target` when the block ends well and disappears when it does not."""
    partial = target.parent / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in partial.iterdir():
            _to_disk(path)
        _to_disk(partial)
        partial.rename(target)
        _to_disk(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def finite(value: Any) -> Any:
    """Give a value ready for JSON, which has no NaN and no infinity: they become None."""
    if isinstance(value, dict):
        return {str(key): finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a small JSON file in one move, so that it is never read half-written."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        _to_disk(partial)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _to_disk(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, would survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Give each place where two JSON values differ: its dotted path and both values, "absent" where there is none.

    Lists of objects with names are compared name by name.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from differences(before.get(key, "absent"), now.get(key, "absent"), inner)
    elif _named(before) and _named(now):
        yield from differences(_by_name(before), _by_name(now), path)
    elif before != now:
        yield path, before, now


def _named(items: Any) -> TypeGuard[list[Any]]:
    return isinstance(items, list) and bool(items) and all(isinstance(item, dict) and "name" in item for item in items)


def _by_name(items: list[Any]) -> dict[str, Any]:
    return {item["name"]: item for item in items}
