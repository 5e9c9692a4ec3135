"""Training configs: JSON and bad values."""

import json

import pytest

from diffattn.train.config import RunConfig, TrainConfig
from support.training import tiny_run


def test_a_run_comes_back_from_json():
    run = tiny_run(seed=3, betas=(0.8, 0.9), clip=None)
    assert RunConfig.from_dict(json.loads(json.dumps(run.to_dict()))) == run


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("batch_size", 0),
        ("learning_rate", 0.0),
        ("warmup", 20),
        ("final_lr_ratio", 2.0),
        ("schedule", "step"),
        ("precision", "float16"),
        ("clip", 0.0),
        ("betas", (0.9, 1.0)),
        ("threads", 0),
        ("save_every", -1),
        ("eval_tokens", 0),
        ("train_only", "layers.*"),
        ("train_only", (1,)),
    ],
)
def test_a_bad_value_is_named(field, value):
    with pytest.raises(ValueError, match=rf"train\.{field} is .*expected"):
        TrainConfig(**{field: value})


def test_one_pattern_without_a_list_is_not_taken_apart_into_letters():
    with pytest.raises(ValueError, match=r"train\.train_only is 'layers\.\*'; expected a list"):
        TrainConfig.from_dict({"train_only": "layers.*"})
    assert TrainConfig.from_dict({"train_only": ["layers.*"]}).train_only == ("layers.*",)


def test_an_unknown_field_is_named():
    with pytest.raises(ValueError, match="no field 'lr'"):
        TrainConfig.from_dict({"lr": 1.0})


def test_a_missing_part_is_named():
    with pytest.raises(ValueError, match="lacks 'data'"):
        RunConfig.from_dict({"model": {}, "train": {}})
