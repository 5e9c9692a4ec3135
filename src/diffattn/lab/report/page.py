"""report.json's dictionary -> one HTML page."""

from typing import Any


def render_page(report: dict[str, Any]) -> str:
    """One self-contained HTML page."""
    return str(report["plan"]["name"])
