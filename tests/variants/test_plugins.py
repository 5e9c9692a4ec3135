"""Variants from outside: a file or a module, loaded once, and what is said when they cannot be."""

from pathlib import Path

import pytest

from diffattn.lab.plan import Arm
from diffattn.recipes.added import with_variants
from diffattn.variants import get, load_plugin, loaded_plugins, names
from diffattn.variants.base import MixerConfig
from diffattn.variants.softmax import Softmax
from support.plans import tiny_plan, tiny_task

VARIANT = """
from dataclasses import dataclass
from diffattn.variants.base import register
from diffattn.variants.softmax import Softmax

@register("outside")
@dataclass(frozen=True, kw_only=True)
class Outside(Softmax):
    "A variant from elsewhere."
"""


@pytest.fixture(autouse=True)
def unchanged_register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests do not get to know what is registered here."""
    monkeypatch.setattr("diffattn.variants.base._REGISTER", {name: get(name) for name in names()})
    monkeypatch.setattr("diffattn.variants.plugins._LOADED", [])


def written(folder: Path, text: str) -> str:
    (folder / "plug_in.py").write_text(text)
    return str(folder / "plug_in.py")


def test_a_file_brings_a_variant_under_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, VARIANT)
    monkeypatch.chdir(tmp_path)
    load_plugin("plug_in.py")
    assert MixerConfig.from_dict({"name": "outside", "heads": 2}).describe() == "A variant from elsewhere."
    assert loaded_plugins() == [str(tmp_path / "plug_in.py")]


def test_loading_it_again_does_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, VARIANT)
    load_plugin(path)
    first = get("outside")
    written(tmp_path, "1 / 0")
    load_plugin(path)
    assert get("outside") is first and loaded_plugins() == [path]


def test_files_whose_paths_differ_in_signs_alone_are_two_plugins(tmp_path: Path) -> None:
    (tmp_path / "my-attn").mkdir()
    (tmp_path / "my_attn").mkdir()
    load_plugin(written(tmp_path / "my-attn", VARIANT))
    first = get("outside")
    with pytest.raises(ValueError, match=r"two variants are called 'outside': \w*my_attn\w* and \w*my_attn\w*"):
        load_plugin(written(tmp_path / "my_attn", VARIANT))
    assert get("outside") is first


def test_a_module_that_was_imported_before_is_a_plugin_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_before.py").write_text(VARIANT)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("imported_before")
    load_plugin("imported_before")
    assert loaded_plugins() == ["imported_before"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "brings no variant"),
        ("import math\n1 / 0", r"ZeroDivisionError: division by zero \(.*plug_in.py, line 2\)"),
        ("def", "SyntaxError"),
        ("import no_such_module", r"No module named 'no_such_module' \(.*plug_in.py, line 1\)"),
        (VARIANT.replace("outside", "softmax"), "two variants are called 'softmax'"),
        ("import sys\nsys.exit(3)", r"SystemExit: 3 \(.*plug_in.py, line 2\)"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load_plugin(written(tmp_path, text))
    assert loaded_plugins() == []


def test_what_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.py is not there"):
        load_plugin(str(tmp_path / "nowhere.py"))
    with pytest.raises(ValueError, match=r"'no\.such' cannot be imported: .*PYTHONPATH"):
        load_plugin("no.such")


def test_an_unknown_variant_may_be_one_whose_plugin_is_missing() -> None:
    with pytest.raises(ValueError, match=r"no variant 'outside'.*--plugin"):
        get("outside")


def test_any_variant_becomes_an_arm_with_heads_as_wide_as_the_baselines() -> None:
    task = tiny_task(arms=(tiny_task().arm("softmax"),))
    (extended,) = with_variants(tiny_plan(task), ["diff_v1", "sigmoid"]).tasks
    first, second = extended.arm("diff_v1").mixer.to_dict(), extended.arm("sigmoid").mixer.to_dict()
    assert (first["heads"], second["heads"]) == (2, 4)
    assert extended.arms[0] == task.arms[0]


def test_an_arm_is_added_once_and_only_where_heads_can_be_halved() -> None:
    with pytest.raises(ValueError, match="--add diff_v1: task 'recall' has an arm of this name"):
        with_variants(tiny_plan(), ["diff_v1"])
    with pytest.raises(ValueError, match="no variant 'dif_v1'"):
        with_variants(tiny_plan(), ["dif_v1"])
    odd = tiny_task(arms=(Arm(name="softmax", mixer=Softmax(heads=1)),))
    with pytest.raises(ValueError, match="diff_v1: it needs a baseline whose heads come in 2s"):
        with_variants(tiny_plan(odd), ["diff_v1"])
