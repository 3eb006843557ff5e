"""One HTML page that opens offline: pictures and tables inside it, styles too, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import csv
import html
import math
import os
from collections.abc import Sequence
from pathlib import Path

from twm.analysis.section import Section

ROWS = 40  # of a table that are shown; the file beside the page holds all


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section]) -> Path:
    """Write the report to ``path``; the files its sections name are embedded, and linked to where they lie."""
    anchors = [f"s{number}" for number in range(1, len(sections) + 1)]
    contents = "".join(
        f'<li><a href="#{anchor}">{html.escape(section.title)}</a></li>'
        for anchor, section in zip(anchors, sections, strict=True)
    )
    body = "".join(_section(section, anchor, path.parent) for anchor, section in zip(anchors, sections, strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<header><h1>{html.escape(title)}</h1><p>{html.escape(lead)}</p></header>"
        f'<nav aria-label="Contents"><ol>{contents}</ol></nav><main>{body}</main></body></html>\n',
        encoding="utf-8",
    )
    return path


def _section(section: Section, anchor: str, base: Path) -> str:
    parts = [f'<section id="{anchor}"><h2>{html.escape(section.title)}</h2><p>{html.escape(section.text)}</p>']
    if section.figure is not None:
        parts.append(_picture(section.figure, section.title, base))
    if section.notes:
        items = "".join(f"<li>{html.escape(note)}</li>" for note in section.notes)
        parts.append(f'<ul class="notes">{items}</ul>')
    if section.table is not None:
        parts.append(_table(section.table, base, folded=section.figure is not None))
    return "".join([*parts, "</section>"])


def _picture(path: Path, title: str, base: Path) -> str:
    """The picture itself, as part of the page; a click opens the file beside it at full size."""
    data, link = base64.b64encode(path.read_bytes()).decode(), html.escape(os.path.relpath(path, base))
    image = f'<img src="data:image/png;base64,{data}" alt="{html.escape(title)}">'
    return f'<figure><a href="{link}">{image}</a></figure>'


def _table(path: Path, base: Path, *, folded: bool) -> str:
    """The head of a CSV file as a table, folded away where a picture shows the same."""
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = list(csv.reader(file)) or [[]]
    numeric = [all(_is_number(row[i]) for row in rows if i < len(row) and row[i]) for i in range(len(head))]
    columns = "".join(f"<th{_right(right)}>{html.escape(name)}</th>" for name, right in zip(head, numeric, strict=True))
    lines = "".join(
        "<tr>"
        + "".join(f"<td{_right(right)}>{_cell(cell)}</td>" for cell, right in zip(row, numeric, strict=True))
        + "</tr>"
        for row in rows[:ROWS]
    )
    link = html.escape(os.path.relpath(path, base))
    shown = f"all {len(rows)} rows" if len(rows) <= ROWS else f"the first {ROWS} of {len(rows)} rows"
    table = f'<div class="scroll"><table><thead><tr>{columns}</tr></thead><tbody>{lines}</tbody></table></div>'
    source = f'<p class="file">{shown} of <a href="{link}">{link}</a></p>'
    if folded:
        return f"<details><summary>Data ({len(rows)} rows)</summary>{table}{source}</details>"
    return table + source


def _right(right: bool) -> str:
    return ' class="n"' if right else ""


def _cell(text: str) -> str:
    """Fractions to four significant digits where they have more; the file has them all."""
    _, point, fraction = text.partition(".")
    if _is_number(text) and (point or "e" in text) and math.isfinite(value := float(text)):
        digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
        if "e" in text or len(fraction) > digits:
            return f"{value:.{digits}f}" if digits <= 6 else f"{value:.3e}"
    return html.escape(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_STYLE = """
:root{color-scheme:light dark;--ink:#1b1b1b;--soft:#555;--line:#ddd;--paper:#fff;--link:#0060a0;--note:#f5f3ec}
@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--soft:#aaa;--line:#444;--paper:#16181b;--link:#7fc4f5;--note:#24231f}}
body{margin:0 auto;max-width:72rem;padding:1.5rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--paper)}
h1{margin:0 0 .3rem;font-size:1.7rem}h2{margin:2.4rem 0 .4rem;font-size:1.25rem;border-top:1px solid var(--line);
padding-top:1.2rem}header p,.file{color:var(--soft)}a{color:var(--link)}nav ol{columns:20rem 3;padding-left:1.4rem}
section p{max-width:50rem}figure{margin:1rem 0}img{max-width:100%;height:auto;background:#fff;border-radius:4px}
.notes{background:var(--note);border-radius:4px;padding:.6rem .6rem .6rem 1.8rem;font-size:.92rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
thead th{border-bottom:2px solid var(--ink)}.n{text-align:right}details{margin:.6rem 0}summary{cursor:pointer}
"""
