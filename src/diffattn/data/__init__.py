"""Text and synthetic data behind one interface: a batch is a pure function of the step and the seed."""

from pathlib import Path

from diffattn.data.base import Batch, Data, DataError, SyntheticData, TextData, data_from_dict

__all__ = ["Batch", "Data", "DataError", "SyntheticData", "TextData", "data_from_dict", "open_data"]


def open_data(
    config: TextData | SyntheticData, *, context: int, batch_size: int, seed: int, folder: Path | None = None
) -> Data:
    """The data of a config, cut into windows of `context` tokens.

    Text is prepared on first use (progress on stderr) and kept under `folder`, $DIFFATTN_CACHE or ~/.cache/diffattn.
    `seed` decides the order of training data (synthetic: its draws) and nothing held out. DataError for data that
    cannot be used.
    """
    if isinstance(config, SyntheticData):
        from diffattn.data.synthetic import SyntheticTask

        return SyntheticTask(config, context=context, batch_size=batch_size, seed=seed)
    from diffattn.data.corpus import Corpus
    from diffattn.data.prepare import prepare

    return Corpus(config, prepare(config, folder), context=context, batch_size=batch_size, seed=seed)
