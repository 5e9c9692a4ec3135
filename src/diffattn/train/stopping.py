"""What can end a run from outside: a signal, or a disk that takes no more."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

from safetensors import SafetensorError


class Interrupts:
    """Inside the block, Ctrl-C and SIGTERM only set `asked`, so that the step in hand ends; a second one breaks off.

    Outside the main thread signals do not arrive, and nothing is changed.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {kind: signal.signal(kind, self._ask) for kind in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    def _ask(self, kind: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def plain_disk_errors(folder: Path) -> Iterator[None]:
    """Turn a failed write inside the block into a ValueError of one line that says what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ValueError(
            f"cannot write the run folder {folder}: {reason}. Free some space or choose a folder that can be written; "
            "the same command goes on from the newest checkpoint"
        ) from error
