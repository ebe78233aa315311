"""SVG shapes, with the colours for light and dark pages."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")

STYLE = """
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",Arial,sans-serif;fill:#1b2430}
.page{fill:#fff}.h{font-size:16px;font-weight:600}.s{font-size:11px;fill:#566272}.m{text-anchor:middle}
.pipe{fill:#eef8f0;stroke:#a9d0b4}.step{fill:#f0f5fc;stroke:#adc2e2}
.box{fill:#fff;stroke:#5c6b80}.moved{fill:#ffd9a0;stroke:#b36b00}
.movable{fill:#fff3df;stroke:#b36b00;stroke-dasharray:4 2}
.stays{fill:#eceff3;stroke:#8490a0}.one{fill:none;stroke:#7a4fb5;stroke-width:1.5}
.line{stroke:#5c6b80;fill:none}.head{fill:#5c6b80}.wall{stroke:#7a8799;stroke-width:2;stroke-dasharray:7 5}
.why{font-size:11px;fill:#9c3d12}
@media (prefers-color-scheme:dark){
text{fill:#e4e9f0}.page{fill:#14181f}.s{fill:#9fabbb}
.pipe{fill:#16261b;stroke:#39573f}.step{fill:#172130;stroke:#3a4d6b}
.box{fill:#222a36;stroke:#8d9bb0}.moved{fill:#6b4300;stroke:#f0a840}.movable{fill:#33260f;stroke:#f0a840}
.stays{fill:#2b313b;stroke:#7d899a}.one{stroke:#b794f0}.line{stroke:#8d9bb0}.head{fill:#8d9bb0}.wall{stroke:#76839a}
.why{fill:#ffab85}
}
"""


def add_rect(
    parent: ET.Element, x: float, y: float, width: float, height: float, style: str, *, radius: int = 5, tip: str = ""
) -> None:
    """A rectangle with a tooltip; `style` is a class of the style sheet."""
    element = _add(parent, "rect", x=x, y=y, width=width, height=height, rx=radius)
    element.set("class", style)
    _tip(element, tip)


def add_line(parent: ET.Element, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
    """A straight line."""
    _add(parent, "line", x1=x1, y1=y1, x2=x2, y2=y2).set("class", style)


def add_arrow(parent: ET.Element, x1: float, x2: float, y: float) -> None:
    """From left to right. The head is a shape of its own: markers have ids, which may clash within a page."""
    add_line(parent, x1, y, x2 - 6, y, "line")
    _add(parent, "path", d=f"M{x2 - 7:g} {y - 3.5:g}L{x2:g} {y:g}L{x2 - 7:g} {y + 3.5:g}z").set("class", "head")


def add_text(parent: ET.Element, x: float, y: float, text: str, style: str = "", tip: str = "") -> None:
    """A line of text with a tooltip, unless that says no more."""
    element = _add(parent, "text", x=x, y=y)
    if style:
        element.set("class", style)
    element.text = clean(text)
    _tip(element, tip if tip != text else "")


def _tip(element: ET.Element, text: str) -> None:
    if not text:
        return
    title = ET.SubElement(element, "title")
    title.text = clean(shortened(text, 600))


def _add(parent: ET.Element, tag: str, **attributes: Any) -> ET.Element:
    texts = {name: value if isinstance(value, str) else f"{value:g}" for name, value in attributes.items()}
    return ET.SubElement(parent, tag, texts)


def shortened(text: str, length: int) -> str:
    """The start and the end: names differ at both."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 3
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def clean(text: str) -> str:
    """Without what XML cannot hold; the rest is escaped when it is written."""
    return _NOT_IN_XML.sub("\ufffd", text)
