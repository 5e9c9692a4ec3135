"""A plan's folder -> the dictionary that report.json holds and that page and text draw from."""

from typing import Any

from diffattn.lab.report.folder import Folder


def summarise(folder: Folder) -> dict[str, Any]:
    """Every number of the report as plain JSON values."""
    return {"plan": {"name": folder.plan["name"]}, "tasks": {}}
