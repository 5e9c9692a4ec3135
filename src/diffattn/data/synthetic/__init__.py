"""Synthetic tasks that only attention solves, drawn as a pure function of seed and step.

What a sequence asks its reader to bind (its set of key-value pairs; for induction its repeated passage) is a
combination. A hash of the combination decides its split, so that no combination of dev or test is ever trained on,
while training sees every token. The unit is the whole set, not the single pair: with single pairs held out, a model
learns from training that they do not occur, and dev would measure that.
"""

from diffattn.data.synthetic.stream import TASKS, SyntheticTask

__all__ = ["TASKS", "SyntheticTask"]
