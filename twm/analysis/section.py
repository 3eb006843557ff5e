"""What a report is made of: sections of text, a picture, its data, and notes on what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from twm.analysis import style
from twm.analysis.tables import Row, write_csv


@dataclass(frozen=True)
class Section:
    """A part of a report. ``figure`` and ``table`` are files beside it, None where there is nothing to show."""

    title: str
    text: str
    figure: Path | None = None
    table: Path | None = None
    notes: list[str] = field(default_factory=list)


class Writer:
    """Puts a section's figure and table into a directory, under a file name made of its title."""

    def __init__(self, out_dir: Path) -> None:
        self.out_dir = out_dir
        self._taken: set[str] = set()

    def section(
        self, title: str, text: str, rows: Sequence[Row] = (), figure: Figure | None = None, notes: Iterable[str] = ()
    ) -> Section:
        name = self._name(title)
        table_path = write_csv(rows, self.out_dir / f"{name}.csv") if rows else None
        figure_path = style.save(figure, self.out_dir / f"{name}.png") if figure is not None else None
        return Section(title, text, figure_path, table_path, list(notes))

    def _name(self, title: str) -> str:
        """Two titles can shrink to one file name; the second gets a number, so that nothing is overwritten."""
        base = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}-{number}", number + 1
        self._taken.add(name)
        return name
