"""Settings that every test shares."""

import os
from pathlib import Path

import pytest
import torch

from diffattn.variants import load_plugin

# Two workers on two cores: one thread each is faster, and the same bits come out on every machine.
torch.set_num_threads(1)

# Tables and help are wrapped at the terminal's width; here and in the processes that tests start, it is this one.
os.environ["COLUMNS"] = "120"

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    """A variant from outside for the contract suite: docs/add-a-variant.md."""
    parser.addoption("--plugin", action="append", default=[], help="a .py file or package.module with variants to test")


def pytest_configure(config: pytest.Config) -> None:
    for plugin in config.getoption("--plugin"):
        load_plugin(plugin)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text beside the checkout; a stranger's clone has none, and the tests that need it say so."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside this checkout: tests on outside text are skipped")
    return folder
