"""Pictures beside the results of `diffattn eval --out`."""

from collections.abc import Iterable, Iterator
from pathlib import Path


def pictures(out: Path | None, tasks: Iterable[str]) -> Iterator[str]:
    """Draw what these tasks left in a folder's eval.json; gives the paths of the pages, or what they need."""
    if out is None or not any(name.startswith("needle") for name in tasks):
        return
    try:
        from diffattn.lab.report.needles import write_needles
    except ModuleNotFoundError as error:
        yield f"No picture of needles: {error.name} is not installed; pip install 'diffattn[report]'"
        return
    yield from map(str, write_needles(out))
