"""Worker processes that train side by side, each taking one run after another."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from diffattn.lab.runs import Run
from diffattn.variants import loaded_plugins

ATTEMPTS = 3
"""How often a run is tried when the process that trains it dies."""
SECONDS_TO_SAVE = 60
"""How long a worker may take to save when it is interrupted."""


@dataclass(frozen=True)
class Answer:
    """What a worker said of a run: its status, and a message where it could not go on."""

    run: Run
    status: str
    """"finished", "non-finite", "interrupted", "error" (a mistake of the user's) or "died" (the process did)."""
    message: str = ""


class Pool:
    """Worker processes for the runs of one plan's folder; they start with the first run and end with `close`."""

    def __init__(self, folder: Path, workers: int, threads: int, devices: int = 0) -> None:
        self.folder = folder
        self.workers = workers
        self.threads = threads
        self.devices = devices
        self.active: dict[int, Run] = {}
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._said: queue.Queue[tuple[subprocess.Popen[str], str | None]] = queue.Queue()

    def work(self, runs: Sequence[Run]) -> Iterator[Answer | None]:
        """Train the runs in their order; yields an answer per run, and None twice a second in between.

        A run whose process dies or is interrupted from outside is taken up by another process.
        """
        waiting, attempts = deque(runs), dict.fromkeys((run.folder for run in runs), 0)
        for number in range(min(self.workers, len(waiting))):
            self._give(number, waiting.popleft())
        while self.active:
            try:
                process, line = self._said.get(timeout=0.5)
            except queue.Empty:
                yield None
                continue
            number = next((n for n, known in self._processes.items() if known is process), None)
            if number is None or number not in self.active:
                continue
            run = self.active.pop(number)
            said = json.loads(line) if line else {"status": "died"}
            if line is None:
                del self._processes[number]
            if said["status"] in ("died", "interrupted"):
                attempts[run.folder] += 1
                if attempts[run.folder] < ATTEMPTS:
                    waiting.appendleft(run)
                else:
                    yield Answer(run, "died", self._epitaph(number, process, run))
            else:
                yield Answer(run, said["status"], said.get("message", ""))
            if waiting:
                self._give(number, waiting.popleft())

    def close(self) -> None:
        """End the processes: without its stdin a worker saves what it trains, and ends."""
        for process in self._processes.values():
            with suppress(BrokenPipeError):  # it has died
                if process.stdin:
                    process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(SECONDS_TO_SAVE)
            except subprocess.TimeoutExpired:
                process.kill()
        for number in range(self.workers):
            log = self._log(number)
            if log.exists() and not log.stat().st_size:
                log.unlink()
        self._processes.clear()
        self.active.clear()

    def _give(self, number: int, run: Run) -> None:
        job = {
            "folder": str(self.folder / run.folder),
            "config": run.config.to_dict(),
            "judged": run.judged,
            "maps": run.maps,
            "evals": run.evals,
            "evals_limit": run.evals_limit,
            "plugins": loaded_plugins(),
        }
        self.active[number] = run
        process = self._processes.get(number) or self._start(number)
        assert process.stdin
        with suppress(BrokenPipeError):  # it has died, and the news is in the queue
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()

    def _start(self, number: int) -> "subprocess.Popen[str]":
        with self._log(number).open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "diffattn.lab.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment(number),
                # Ctrl-C reaches the runner alone, which ends the workers: none is interrupted twice.
                start_new_session=True,
            )
        self._processes[number] = process
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _environment(self, number: int) -> dict[str, str]:
        extra = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if self.devices:
            extra["CUDA_VISIBLE_DEVICES"] = str(number % self.devices)
        return {**os.environ, **extra}

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout
        for line in process.stdout:
            self._said.put((process, line))
        self._said.put((process, None))

    def _log(self, number: int) -> Path:
        return self.folder / f"worker-{number}.log"

    def _epitaph(self, number: int, process: "subprocess.Popen[str]", run: Run) -> str:
        if process in self._processes.values():
            return f"{run.folder} was interrupted from outside {ATTEMPTS} times"
        code = process.wait()
        log = self._log(number)
        last = log.read_text().strip().splitlines()[-1:] if log.exists() else []
        why = f"signal {-code}" + (", often a lack of memory" if code == -9 else "") if code < 0 else f"status {code}"
        return f"the process training {run.folder} ended {ATTEMPTS} times ({why}): {''.join(last)} (all of it in {log})"
