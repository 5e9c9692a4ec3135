"""report.json's dictionary -> Markdown, for a terminal or a pull request."""

from typing import Any


def render_text(report: dict[str, Any]) -> str:
    """The verdicts, the tables and what was not equal, as Markdown."""
    return f"# {report['plan']['name']}\n"
