"""Variants are found by name, from this package and from outside."""

import sys
from pathlib import Path

import pytest

from diffattn.variants import get, load_plugin, names
from diffattn.variants.base import MixerConfig, register


def test_variants_are_found_without_being_listed() -> None:
    assert {"softmax", "diff_v1", "diff_v2"} <= set(names())
    assert names() == sorted(names())


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="no variant 'dif_v1'; did you mean 'diff_v1'"):
        get("dif_v1")


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="'diff_v1' has no option 'lambda_int'; did you mean 'lambda_init'"):
        MixerConfig.from_dict({"name": "diff_v1", "lambda_int": 0.5})


def test_a_config_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no variant ''"):
        MixerConfig.from_dict({"heads": 2})


def test_a_plugin_brings_a_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_variant.py").write_text(
        "from dataclasses import dataclass\n"
        "from diffattn.variants.base import register\n"
        "from diffattn.variants.softmax import Softmax\n"
        "@register('outside')\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Outside(Softmax):\n"
        "    'A variant from elsewhere.'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("diffattn.variants.base._REGISTER", {name: get(name) for name in names()})
    load_plugin("outside_variant")
    sys.modules.pop("outside_variant")
    config = MixerConfig.from_dict({"name": "outside", "heads": 2})
    assert config.describe() == "A variant from elsewhere."
    assert config.to_dict()["name"] == "outside"


def test_a_missing_plugin_is_said_to_be_missing() -> None:
    with pytest.raises(ValueError, match=r"plugin 'no\.such' cannot be imported"):
        load_plugin("no.such")


def test_a_name_is_taken_once() -> None:
    names()
    with pytest.raises(ValueError, match="two variants are called 'softmax'"):

        @register("softmax")
        class Other(MixerConfig):
            """Another one."""
