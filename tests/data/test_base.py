"""Configs survive JSON, and a wrong name is answered with the right one."""

import json

import pytest

from diffattn.data import SyntheticData, TextData, data_from_dict


@pytest.mark.parametrize(
    "config", [TextData(source="x.txt", tokenizer="bpe", limit_bytes=5), SyntheticData(task="needle", pairs=2)]
)
def test_a_config_comes_back_from_json(config: TextData | SyntheticData) -> None:
    assert data_from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'tokenizer'"):
        data_from_dict({"kind": "text", "tokeniser": "bpe"})


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'text'"):
        data_from_dict({"kind": "texts"})
