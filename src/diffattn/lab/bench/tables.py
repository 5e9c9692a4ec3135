"""Measurements as tables for a terminal or a pipe, and as JSON."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH = 140
"""Columns in a pipe, which has no width of its own."""


class Printer:
    """Prints tables as they are measured."""

    def __init__(self) -> None:
        self.console = Console()
        if not self.console.is_terminal:
            self.console = Console(width=WIDTH)

    def machine(self, machine: dict[str, Any]) -> None:
        """What was measured on, and what bounds it."""
        self._say(
            f"{machine['processor']}, {machine['threads']} of {machine['cores']} threads, torch {machine['torch']}, "
            f"diffattn {machine['diffattn']}, {machine['dtype']}, {machine['date']}"
        )
        self._say(f"torch.mm reaches {machine['matmul_peak_gflops']:.0f} GFLOP/s")
        self._say(f"hardware peak: {machine['hardware_peak_derivation']}")

    def attention(self, table: dict[str, Any]) -> None:
        """One shape and pass: a row a contender, and why the others are missing."""
        shape = table["shape"]
        causal = "causal" if shape["is_causal"] else "not causal"
        window = f", window {shape['window']}" if shape["window"] else ""
        length = f"T = {shape['queries']}" if shape["queries"] == shape["keys"] else f"1 query, {shape['keys']} keys"
        title = (
            f"{length}, {table['pass']}: B {shape['batch']}, H {shape['heads']}, G {shape['kv_heads']}, "
            f"D {shape['width']}, E {shape['value_width']}, {causal}{window}"
        )
        header = [
            "",
            "",
            "ms",
            "x (a)",
            "x (d)",
            "GFLOP/s",
            "of torch.mm",
            "of hardware",
            "peak MB",
            "error",
            "of grad",
        ]
        self._table(title, header, (_attention_row(row) for row in table["contenders"].values()), texts=2)
        self._rounds(table)
        for name, reason in table["missing"].items():
            self._say(f"without {name}: {reason}")

    def step(self, found: dict[str, Any]) -> None:
        """A row an arm."""
        sizes = f"{found['batch_size']} x {found['context']} tokens, vocabulary {found['vocab_size']}"
        header = ["arm", "parameters", "ms", f"x {found['baseline']}", "tokens/s", "GFLOP/s", "of torch.mm"]
        rows = (
            [
                name,
                f"{row['parameters']:,}",
                f"{row['milliseconds']:.1f}",
                f"{row['ratio_to_baseline']:.2f}",
                f"{row['tokens_per_second']:,.0f}",
                f"{row['gflops']:.1f}",
                f"{row['share_of_matmul_peak']:.0%}",
            ]
            for name, row in found["arms"].items()
        )
        self._table(f"a training step of {found['task']}: {sizes}", header, rows)
        self._rounds(found)

    def generation(self, found: dict[str, Any]) -> None:
        """A row an arm."""
        sizes = f"{found['batch']} x {found['prompt']} prompt tokens, then {found['new']} new ones"
        header = ["arm", "prompt tokens/s", "new tokens/s", "ms a token", f"x {found['baseline']}"]
        rows = (
            [
                name,
                f"{row['prompt_tokens_per_second']:,.0f}",
                f"{row['tokens_per_second']:,.1f}",
                f"{row['milliseconds_per_token']:.2f}",
                f"{row['ratio_to_baseline']:.2f}",
            ]
            for name, row in found["arms"].items()
        )
        self._table(f"generation by {found['task']}: {sizes}", header, rows)
        self._rounds(found)

    def _table(self, title: str, header: list[str], rows: Iterable[list[str]], texts: int = 1) -> None:
        table = Table(title=title, title_justify="left", title_style="bold")
        for number, name in enumerate(header):
            table.add_column(name, justify="left" if number < texts else "right")
        for row in rows:
            table.add_row(*row)
        self.console.print()
        self.console.print(table)

    def _rounds(self, found: dict[str, Any]) -> None:
        if found["disturbed"] is None:
            self._say(f"medians of {found['rounds']} rounds; whether other work ran cannot be told here")
        elif found["quiet"]:
            self._say(f"medians of {found['rounds']} rounds; {found['disturbed']} with other load were thrown away")
        else:
            self._say(
                f"medians of {found['rounds']} rounds, {found['disturbed']} of them WITH OTHER LOAD on the machine"
            )

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _attention_row(row: dict[str, Any]) -> list[str]:
    error, memory = row["error"] or {}, row["peak_memory_bytes"]
    return [
        f"({row['letter']})" if row["letter"] else "",
        row["title"],
        f"{row['milliseconds']:.2f}",
        f"{row['ratio_to_a']:.2f}",
        f"{row['ratio_to_d']:.2f}",
        f"{row['gflops']:.1f}",
        f"{row['share_of_matmul_peak']:.0%}",
        "unknown" if row["share_of_hardware_peak"] is None else f"{row['share_of_hardware_peak']:.0%}",
        "" if memory is None else f"{memory / 1e6:.1f}",
        *("" if error.get(kind) is None else f"{error[kind]:.1e}" for kind in ("output", "gradients")),
    ]


def write(found: dict[str, Any], path: Path | None) -> None:
    """Write everything, where a path is given."""
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
