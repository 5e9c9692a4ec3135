"""The process that trains: `python -m diffattn.lab.worker` takes runs from stdin, one JSON line each.

It answers each with one JSON line on stdout. Keeping the process saves importing torch for every run; keeping it apart
from the runner lets runs go side by side, and lets one that is killed be taken up by another.
"""

import _thread
import json
import math
import os
import queue
import shutil
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO


def main() -> None:
    """Work off the jobs until stdin closes; when it closes early, the run in hand is saved and given up."""
    # A shell that starts commands in the background makes them deaf to interruptions; this one must hear them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Nothing that a library prints may get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    jobs: queue.Queue[str | None] = queue.Queue()
    busy = threading.Event()
    threading.Thread(target=_read, args=(sys.stdin, jobs, busy), daemon=True).start()
    try:
        while (line := jobs.get()) is not None:
            busy.set()
            answer = _answer(json.loads(line))
            busy.clear()
            print(json.dumps(answer), file=answers)
    except KeyboardInterrupt:
        sys.exit(130)


def _read(stream: TextIO, jobs: "queue.Queue[str | None]", busy: threading.Event) -> None:
    """Pass lines on; a runner that disappears must not leave a training behind that a new one would start again."""
    for line in stream:
        jobs.put(line)
    jobs.put(None)
    if busy.is_set():
        _thread.interrupt_main()


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"status": work(job)}
    except (ValueError, OSError) as error:
        return {"status": "error", "message": f"{Path(job['folder']).name}: {error}"}


def work(job: dict[str, Any]) -> str:
    """Train the run of a job and, where it is judged, evaluate it; what is on disk already is not done again.

    job: {"folder", "config": RunConfig.to_dict(), "judged": bool, "maps": bool, "evals": names of tasks, "evals_limit":
    items of each, "plugins": list[str]}. Returns the outcome's status.
    """
    from diffattn.evals.results import complete_results
    from diffattn.lab.progress import read_done
    from diffattn.lab.runs import BASE, REDRAW
    from diffattn.train.config import RunConfig
    from diffattn.train.trainer import train
    from diffattn.variants import load_plugin

    for plugin in job["plugins"]:
        load_plugin(plugin)
    run, folder = RunConfig.from_dict(job["config"]), Path(job["folder"])
    # What environment.json notes as the command: this one repeats the run.
    sys.argv = ["diffattn", "train", "--from", str(folder / "config.json")]
    sys.argv += [word for plugin in job["plugins"] for word in ("--plugin", plugin)]
    if BASE in run.labels:
        base = folder.parent / run.labels[BASE]
        if read_done(base).get("status") == "non-finite":
            return _failed_with_its_base(folder, base)
        run = replace(run, train=replace(run.train, init_from=str(base / "model")))
    if REDRAW in run.labels:
        run = _with_redrawn_attention(run, folder)
    outcome = train(run, folder, quiet=True)
    if outcome.status == "finished":
        shutil.rmtree(folder / "start", ignore_errors=True)
        if job["judged"] and not evaluate_run(run, folder, maps=job["maps"]):
            return _failed_on_test(folder)
        complete_results(folder, job["evals"], job["evals_limit"], run.seed)
    return outcome.status


def _failed_with_its_base(folder: Path, base: Path) -> str:
    """Count a run as failed before its first step, where the training that it continues has failed."""
    from diffattn.files import write_json

    status = "non-finite"
    folder.mkdir(exist_ok=True)
    write_json(
        folder / "done",
        {"status": status, "step": 0, "loss": None, "seconds": 0.0, "tokens": 0, "layer": f"its base, {base.name}"},
    )
    return status


def _failed_on_test(folder: Path) -> str:
    """Count a run whose loss is finite on dev alone as failed, as training counts others."""
    from diffattn.files import write_json
    from diffattn.lab.progress import read_done

    status = "non-finite"
    failed = {"status": status, "loss": None, "layer": "the evaluation on test"}
    write_json(folder / "done", read_done(folder) | failed)
    return status


def evaluate_run(run: Any, folder: Path, *, maps: bool) -> bool:
    """Write evals/test.json and, where `maps` asks for them, evals/inside.json and evals/maps.json of a finished run.

    Only the report reads them. What is inside is looked at on the dev split. False, and nothing is written: the loss on
    test is not finite.
    """
    from diffattn.data import SyntheticData, open_data
    from diffattn.evals.inside import INSIDE_TOKENS
    from diffattn.evals.instruments import look_inside
    from diffattn.evals.maps import sentence_maps
    from diffattn.evals.perplexity import evaluate
    from diffattn.files import write_json
    from diffattn.hub.convert import load

    test, attention = folder / "evals" / "test.json", folder / "evals" / "maps.json"
    if test.exists() and (attention.exists() or not maps):
        return True
    test.parent.mkdir(exist_ok=True)
    data = open_data(run.data, context=run.model.context, batch_size=run.train.batch_size, seed=run.seed)
    model = load(folder / "model").eval()
    if not test.exists():
        heldout = evaluate(model, data.evaluation("test", run.train.eval_tokens), data.token_bytes, data.grader)
        if not math.isfinite(heldout.loss):
            return False
        write_json(test, heldout.to_dict())
    if maps and not attention.exists():
        answers = isinstance(run.data, SyntheticData)
        inside = look_inside(model, data.evaluation("dev", INSIDE_TOKENS), answers=answers)
        write_json(attention.with_name("inside.json"), inside.to_dict())
        # Last, as it says that all is written.
        ids = data.sentence()
        write_json(attention, sentence_maps(model, ids, data.labels(ids)))
    return True


def _with_redrawn_attention(run: Any, folder: Path) -> Any:
    """Save the run's first model with the attention's tensors of another seed; return the run that starts there."""
    import torch

    from diffattn.data import open_data
    from diffattn.hub.convert import save
    from diffattn.lab.runs import REDRAW
    from diffattn.model.decoder import build
    from diffattn.train.start import tokenizer_file

    start = folder / "start"
    if not (folder / "done").exists():
        model = build(run.model, seed=run.seed)
        redrawn = dict(build(run.model, seed=run.seed + int(run.labels[REDRAW])).named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".mixer." in name:
                    parameter.copy_(redrawn[name])
        data = open_data(run.data, context=run.model.context, batch_size=run.train.sequences, seed=run.seed)
        save(model, start, tokenizer=tokenizer_file(data))
    return replace(run, train=replace(run.train, init_from=str(start)))


if __name__ == "__main__":
    main()
