"""The laboratory on planted truths: a worse arm is called WORSE, a copy of the baseline is not called anything."""

import json
from dataclasses import replace

import pytest

from diffattn import recipes
from diffattn.lab import runner
from diffattn.lab.plan import Arm
from diffattn.variants.softmax import Softmax


@pytest.mark.slow
def test_a_worse_arm_is_called_worse_and_a_copy_is_not_called_anything(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFFATTN_CACHE", str(tmp_path / "cache"))
    plan = recipes.get("smoke")
    task = plan.tasks[0]
    arms = (
        task.arm("softmax"),
        Arm(name="worse", mixer=Softmax(heads=4), learning_rate_factor=1 / 30),
        Arm(name="copy", mixer=Softmax(heads=4), redraw_attention=1000),
    )
    train = replace(task.train, steps=48)
    task = replace(task, arms=arms, seeds=5, quarter=False, train=train)
    out = tmp_path / "planted"
    runner.compare(replace(plan, name="planted", tasks=(task,)), out, quiet=True)
    findings = json.loads((out / "report.json").read_text())["tasks"]["text"]["findings"]
    verdicts = {finding["arm"]: finding["verdict"] for finding in findings}
    assert verdicts["worse"] == "WORSE", verdicts
    assert verdicts["copy"] in ("NO DIFFERENCE", "UNRESOLVED", "BLIND"), verdicts
