"""What the pages say runs, and what they name exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from diffattn import recipes
from diffattn.cli import VERBS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_blocks_run(page: Path):
    # What a page takes as given: the weights of an official module.
    given = """
import torch
rows = {"q": 64, "k": 32, "v": 32, "out": 64}
state_dict = {f"{name}_proj.weight": torch.randn(count, 64) for name, count in rows.items()}
state_dict |= {f"lambda_{name}": torch.randn(4) for name in ("q1", "k1", "q2", "k2")} | {"subln.weight": torch.ones(8)}
"""
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        code = given * ("state_dict" in block) + "import diffattn, torch\nx = torch.randn(2, 128, 512)\n" + block
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_that_exist(page: Path):
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_name_verbs_recipes_and_targets_that_exist(page: Path):
    text = page.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", text, flags=re.MULTILINE)) <= targets
    assert set(re.findall(r"^diffattn ([a-z]+)", text, flags=re.MULTILINE)) <= set(VERBS)
    assert set(re.findall(r"diffattn compare ([a-z]\w*)", text)) <= set(recipes.names())


def test_the_tree_in_the_readme_names_every_folder():
    readme = (ROOT / "README.md").read_text()
    folders = [path.name for path in (ROOT / "src/diffattn").iterdir() if (path / "__init__.py").exists()]
    assert all(f"  {folder}/" in readme for folder in folders)


def test_examples_run():
    for example in sorted((ROOT / "examples").glob("*.py")):
        done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{example.name}\n{done.stderr}"
