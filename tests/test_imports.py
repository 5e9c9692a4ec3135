"""The package imports with nothing optional installed, and its command line answers without torch."""

import subprocess
import sys

import pytest

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked by the test)", name=name)
sys.meta_path.insert(0, Blocker())
"""
OPTIONAL = {
    "triton",
    "transformers",
    "flash_attn",
    "apex",
    "einops",
    "datasets",
    "wandb",
    "tensorboard",
    "torchao",
    "lm_eval",
}
EVERYTHING = """
import importlib, pkgutil, diffattn
for module in pkgutil.walk_packages(diffattn.__path__, "diffattn."):
    importlib.import_module(module.name)
for name in diffattn.__all__:
    getattr(diffattn, name)
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_every_module_imports_without_the_optional_packages():
    done = python(BLOCK.format(blocked=OPTIONAL) + EVERYTHING)
    assert done.returncode == 0, done.stderr


def test_the_tests_of_ops_model_train_and_lab_are_collected_without_the_optional_packages():
    suites = ["tests/ops", "tests/model", "tests/train", "tests/lab"]
    collect = f"import pytest; sys.exit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', *{suites!r}]))"
    done = python(BLOCK.format(blocked=OPTIONAL) + collect)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("code", ["import diffattn.lab.verdict, diffattn.stats", "import diffattn.lab.report"])
def test_verdict_and_report_work_where_torch_is_not_installed(code: str):
    done = python(BLOCK.format(blocked={"torch"}) + code)
    assert done.returncode == 0, done.stderr


def test_a_model_is_evaluated_without_scipy():
    done = python(BLOCK.format(blocked={"scipy"}) + "import diffattn.evals.many_shot, diffattn.evals.needle")
    assert done.returncode == 0, done.stderr


def test_help_answers_without_torch_or_any_other_large_package():
    code = "import sys; from diffattn.cli import main; main(['--help']); print(sorted(sys.modules))"
    done = python(code)
    assert done.returncode == 0, done.stderr
    modules = set(eval(done.stdout.splitlines()[-1]))
    assert not modules & {"torch", "numpy", "scipy", "tyro", "rich", "jinja2"}
