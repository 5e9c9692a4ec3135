"""Words -> Markdown that also reads well as it stands: only what would be taken for markup there is escaped."""

import re

from diffattn.lab.report.tables import Table

BEGINS_A_BLOCK = re.compile(r"^(?:(\d+)(?=[.)](?:\s|$))|(?=>|#{1,6}(?:\s|$)|[-+](?:\s|$)|-{3,}\s*$|=+\s*$|\[))")
"""A list, a quotation, a heading or the line below one, a box to be ticked; the digits of a numbered list."""


def plain(words: str) -> str:
    """Escape what Markdown would misread; commands in backticks stay commands."""
    parts = re.split(r"(`[^`]+`)", re.sub(r"\s*\n\s*", " ", words.strip("\n")))
    parts[::2] = [_escaped(part) for part in parts[::2]]
    return BEGINS_A_BLOCK.sub(r"\1\\", "".join(parts))


def in_table(words: str) -> str:
    """Escape for a cell, where a bar ends it, in a command too."""
    return plain(words).replace("|", "\\|")


def table(shown: Table) -> str:
    """Quantities as rows and arms as columns, or the other way round where there are more arms than quantities."""
    names = [in_table(name) for name, _, _ in shown.rows]
    notes = [in_table(f" ({words})") if words else "" for _, words, _ in shown.rows]
    quantities = [in_table(name) for name in _quantities(shown)]
    cells = [[in_table(cell) for cell in column.cells] for _, columns in shown.groups for column in columns]
    if len(names) > len(quantities):
        arms = [name + note for name, note in zip(names, notes, strict=True)]
        names, quantities, cells = quantities, arms, [list(row) for row in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(["", *names]) + " |", "|---" + "|---:" * len(names) + "|"]
    lines += ["| " + " | ".join([name, *row]) + " |" for name, row in zip(quantities, cells, strict=True)]
    return "\n".join(lines)


def _quantities(shown: Table) -> list[str]:
    """Names and units of the columns; the group in front where two would be the same."""
    found = [
        (group, f"{one.name}, {one.unit}" if one.unit else one.name)
        for group, columns in shown.groups
        for one in columns
    ]
    said = [words for _, words in found]
    return [f"{group}: {words}" if said.count(words) > 1 else words for group, words in found]


def _escaped(words: str) -> str:
    words = re.sub(r"\\(?=[!-/:-@\[-`{-~]|$)", r"\\\\", words)
    words = words.replace("`", "\\`")
    # Between two spaces a star is a star; between letters or digits an underscore is one.
    words = re.sub(r"(?<!\s)\*|\*(?!\s)", r"\\*", words)
    words = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", words)
    words = re.sub(r"(?<=\S)~", r"\\~", words)
    # A link, its definition, an entity, HTML.
    words = re.sub(r"\](?=[(\[:])", r"\\]", words)
    words = re.sub(r"&(?=#?\w+;)", r"\\&", words)
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", words)
