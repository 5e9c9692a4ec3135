"""Settings that every test shares."""

from pathlib import Path

import pytest
import torch

# Two workers on two cores: one thread each is faster, and the same bits come out on every machine.
torch.set_num_threads(1)

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text beside the checkout; a stranger's clone has none, and the tests that need it say so."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside this checkout: tests on outside text are skipped")
    return folder
