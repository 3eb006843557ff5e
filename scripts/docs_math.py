"""A hook of the documentation site: formulas become MathML, which browsers draw themselves, without any script."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(text: str, **_: Any) -> str:
    """Called by mkdocs for each page, after its Markdown has become HTML."""

    def draw(found: re.Match[str]) -> str:
        return convert(html.unescape(found.group(2)), display="block" if found.group(1) == "div" else "inline")

    return _FORMULA.sub(draw, text)
