"""The report of a comparison: one HTML page that needs nothing else, and the same numbers as JSON and Markdown.

It reads a plan's folder and nothing more, so it works on another machine, without torch, while runs are still going:
`folder` (files -> dataclasses) -> `summary` (-> the report.json dictionary) -> `page` and `text` (-> HTML, Markdown).
Page and text see only that dictionary, so that all three hold the same numbers.
"""

import json
import os
from pathlib import Path

from diffattn.lab.report.folder import read_folder
from diffattn.lab.report.page import render_page
from diffattn.lab.report.summary import summarise
from diffattn.lab.report.text import render_text


def write_report(folder: Path) -> Path:
    """Write report.json, report.md and report.html into a plan's folder and return the path of the HTML page.

    Runs that are missing or unfinished are said to be so.  Each file appears whole or not at all.
    ValueError: the folder holds no plan, or one of its files cannot be read.
    """
    folder = Path(folder)
    report = summarise(read_folder(folder))
    write_whole(folder / "report.json", json.dumps(report, allow_nan=False, ensure_ascii=False) + "\n")
    write_whole(folder / "report.md", render_text(report))
    return write_whole(folder / "report.html", render_page(report))


def write_whole(path: Path, content: str) -> Path:
    """Write a file by a temporary name beside the target and rename: a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
