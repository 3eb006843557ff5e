"""The page: everything inside, nothing fetched, text escaped, long tables cut."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from twm.analysis import style
from twm.analysis.page import write_page
from twm.analysis.section import Section, Writer


def test_a_page_holds_its_pictures_and_fetches_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    rows = [{"Game": "Pong", "Score": 18.8}]
    section = writer.section("A figure", "Text.", rows, style.message("hello"), ["one note"])
    text = write_page(tmp_path / "index.html", "Title", "Lead", [section]).read_text()
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert base64.b64decode(data) == (tmp_path / "a-figure.png").read_bytes()
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', text)
    assert "<script" not in text
    assert set(re.findall(r'(?<!img )(?:href|src)="(?!data:)([^"]+)"', text)) == {"#s1", "a-figure.png", "a-figure.csv"}
    assert "<li>one note</li>" in text


def test_text_is_escaped(tmp_path: Path) -> None:
    sections = [Section("a < b & c", "<script>alert(1)</script>", notes=["<b>"])]
    text = write_page(tmp_path / "index.html", "<t>", "<l>", sections).read_text()
    assert "<script>" not in text
    assert "a &lt; b &amp; c" in text
    assert "<b>" not in text


def test_a_section_without_figure_and_table_says_why(tmp_path: Path) -> None:
    text = write_page(tmp_path / "index.html", "T", "L", [Section("Missing", "No run has finished.")]).read_text()
    assert "No run has finished." in text
    assert "<img" not in text


def test_numbers_in_tables(tmp_path: Path) -> None:
    """Right-aligned where a column is all numbers; fractions cut to four digits; counts and texts as they are."""
    rows = [
        {"Name": "a", "Value": 0.123456789, "Count": 100_000},
        {"Name": "b", "Value": None, "Count": 7},
        {"Name": "c", "Value": 12345.6789, "Count": 8},
        {"Name": "d", "Value": 1.5e-9, "Count": 9},
        {"Name": "e", "Value": 31876.909, "Count": 10},
        {"Name": "f", "Value": 0.956, "Count": 11},
    ]
    section = Writer(tmp_path).section("Numbers", "", rows)
    text = write_page(tmp_path / "index.html", "T", "L", [section]).read_text()
    assert re.findall(r'<td class="n">([^<]*)</td>', text) == [
        *("0.1235", "100000"),
        *("", "7"),
        *("12346", "8"),
        *("1.500e-09", "9"),
        *("31877", "10"),
        *("0.956", "11"),
    ]
    assert "<td>a</td>" in text


def test_a_long_table_is_cut_and_says_where_the_rest_is(tmp_path: Path) -> None:
    section = Writer(tmp_path).section("Long", "", [{"n": i} for i in range(100)])
    text = write_page(tmp_path / "index.html", "T", "L", [section]).read_text()
    assert text.count("<tr>") == 41
    assert 'the first 40 of 100 rows of <a href="long.csv">' in text
