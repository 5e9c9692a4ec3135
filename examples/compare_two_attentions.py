"""A comparison from Python: a plan is a value, its runs and its report are folders."""

import tempfile
from dataclasses import replace
from pathlib import Path

from diffattn import recipes
from diffattn.lab import runner

plan = recipes.get("smoke")
recall = plan.tasks[1]
two = replace(recall, arms=tuple(arm for arm in recall.arms if arm.name in ("softmax", "diff_v1")), seeds=3)
with tempfile.TemporaryDirectory() as folder:
    report = runner.compare(replace(plan, tasks=(two,)), Path(folder), workers=1)
    print(report.with_suffix(".md").read_text()[:600] if report else "interrupted")
