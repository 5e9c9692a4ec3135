"""Models that are trained first, which the runs of a task continue: what they are, and whether the arms can go on."""

from dataclasses import replace
from typing import TYPE_CHECKING

from diffattn.hub.adapt import check_continues
from diffattn.lab.arms import Arm
from diffattn.model.config import ModelConfig
from diffattn.model.stretch import scaling_towards, stretched_config
from diffattn.train.config import RunConfig
from diffattn.train.start import trained_parameters

if TYPE_CHECKING:
    from diffattn.lab.plan import Task


def base_model(task: "Task", model: ModelConfig) -> ModelConfig:
    """Give a model as the task trains it first: at the context of its bases, where rotary needs no scaling."""
    if not task.base_context:
        return model
    return replace(model, context=task.base_context, rope_scaling="none", rope_factor=1.0, rope_original_context=None)


def validate_base(task: "Task") -> None:
    """Raise ValueError where a task's runs cannot start as it says, from bases or from a model folder."""
    if task.base_steps < 0:
        raise ValueError(f"base_steps of {task.name!r} is {task.base_steps}; it needs 0 or more steps")
    if task.base_steps and task.train.init_from:
        raise ValueError(f"task {task.name!r} has base_steps and train.init_from; its runs can start from one only")
    if not task.base_steps and (task.base_of != "baseline" or task.base_context):
        raise ValueError(f"task {task.name!r} has base_of or base_context, but no base_steps; give the steps of a base")
    context = task.model.context
    if task.base_context and (not 0 < task.base_context < context or context % task.base_context):
        raise ValueError(
            f"base_context of {task.name!r} is {task.base_context}; a base reads the tokens of a step in shorter "
            f"windows, so it needs a divisor of the context {context} that is below it, or 0 for the same context"
        )
    for arm in task.arms:
        _validate_arm(task, arm)


def _validate_arm(task: "Task", arm: Arm) -> None:
    other = arm.ffn_width not in (None, task.model.ffn_width) or arm.model or arm.redraw_attention
    if task.shares_base and other:
        raise ValueError(
            f"arm {arm.name!r} continues a trained baseline, so it can differ in its attention only: leave "
            "ffn_width, model and redraw_attention alone"
        )
    if task.base_steps and arm.redraw_attention:
        raise ValueError(f"arm {arm.name!r} continues a trained model: leave redraw_attention alone")
    model = arm.model_from(task.model)
    extends = any(model.mixer_at(layer).trains for layer in range(model.layers))
    if extends and not (task.base_steps or task.train.init_from):
        raise ValueError(
            f"arm {arm.name!r} trains from a loaded model only; give task {task.name!r} base_steps, or "
            "train.init_from a model folder"
        )
    if extends and task.base_steps and not task.shares_base:
        raise ValueError(
            f"arm {arm.name!r} trains from a loaded model only, so it has none of its own to continue; set base_of "
            f'of {task.name!r} to "baseline"'
        )
    if extends and task.shares_base and arm.name == task.baseline:
        raise ValueError(
            f"arm {arm.name!r} trains from a loaded model only, so it cannot be the baseline of "
            f"{task.name!r} that base_steps train first; choose a softmax arm"
        )
    try:
        _validate_start(task, arm, model)
    except ValueError as error:
        raise ValueError(f"arm {arm.name!r}: {error}") from error


def _validate_start(task: "Task", arm: Arm, model: ModelConfig) -> None:
    """What training would only find out once the base is there: models on the meta device tell it at once."""
    if task.base_steps:
        base = base_model(task, task.arm(task.baseline).model_from(task.model) if task.shares_base else model)
        if base.context != model.context:
            model.validate()  # before a scaling that it cannot have is tried on the base
            base = stretched_config(base, model.context, scaling_towards(base, model))
        check_continues(base, model)
    patterns = arm.trains or task.train.train_only
    if patterns:
        train = replace(task.train, train_only=patterns)
        trained_parameters(RunConfig(model=model, data=task.data, train=train))
