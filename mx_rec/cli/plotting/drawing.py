"""Draws pictures of graphs as SVG, and as an HTML page around it.

The layout is fixed: a column for each station of a lookup, a row for each lookup, the iterator in between. So nothing
needs to be placed by an algorithm, and a part that moved is on the other side of the line in the same row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

from mx_rec.cli.plotting.picture import MOVABLE, MOVED, STAYS, Group, Picture, Row
from mx_rec.cli.plotting.shapes import STYLE, add_arrow, add_line, add_rect, add_text, clean, shortened

WIDTH = 1200
_MARGIN = 16
_ROW, _BOX, _NOTE, _HEADER, _GAP = 30, 22, 16, 24, 14
_TOP, _LANES = 52, 46  # the titles of a panel; the names of lanes and columns
_BOUNDARY = 610
_STATE_WORDS = {
    MOVED: "keys prepared in the input pipeline",
    MOVABLE: "rewrite would move this",
    STAYS: "stays at the step",
}
_SIDE_WORDS = {"train": "finds or inserts", "eval": "only finds"}


class _Column(NamedTuple):
    """A station of a lookup: left edge, width, heading."""

    x: int
    width: int
    heading: str

    @property
    def right(self) -> int:
        return self.x + self.width

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


_NAMES = _Column(28, 152, "lookup")
_DATASET = _Column(192, 130, "datasets")
_IDS_AHEAD = _Column(340, 96, "batch to ids")
_KEYS_AHEAD = _Column(454, 130, "unique keys, look ahead")
_IDS = _Column(638, 96, "batch to ids")
_KEYS = _Column(752, 90, "unique keys")
_TABLE = _Column(866, 160, "table: find, gather")
_REST = _Column(1050, 122, "rest of the graph")


def svg_text(pictures: Sequence[Picture], title: str) -> str:
    """The pictures below each other, as one SVG document without references to anything outside."""
    return ET.tostring(_svg(pictures, title), encoding="unicode") + "\n"


def html_text(pictures: Sequence[Picture], title: str) -> str:
    """A page with the SVG and, as text, the lookups it shows."""
    page = ET.Element("html", lang="en")
    head = ET.SubElement(page, "head")
    ET.SubElement(head, "meta", charset="utf-8")
    ET.SubElement(head, "meta", name="viewport", content="width=device-width")
    ET.SubElement(head, "meta", name="color-scheme", content="light dark")
    ET.SubElement(head, "title").text = clean(title)
    ET.SubElement(head, "style").text = (
        "body{font:14px system-ui,sans-serif;margin:1em;max-width:1200px}svg{width:100%;height:auto}"
        "table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:2px 10px 2px 0}"
    )
    body = ET.SubElement(page, "body")
    ET.SubElement(body, "h1").text = clean(title)
    body.append(_svg(pictures, title))
    for picture in pictures:
        ET.SubElement(body, "h2").text = clean(picture.title)
        ET.SubElement(body, "p").text = clean(summary(picture))
        _table(body, picture)
    return "<!DOCTYPE html>\n" + ET.tostring(page, encoding="unicode", method="html") + "\n"


def summary(picture: Picture) -> str:
    """Counts in words; what was summarised is among them."""
    total = sum(picture.counts.values())
    parts = [f"{total:,} lookup{'' if total == 1 else 's'}"]
    words = {MOVED: "moved", MOVABLE: "movable", STAYS: "stay"}
    parts.extend(f"{picture.counts[state]:,} {word}" for state, word in words.items() if picture.counts[state])
    if picture.summarised:
        parts.append(f"{picture.summarised:,} summarised")
    return ", ".join(parts)


def _svg(pictures: Sequence[Picture], title: str) -> ET.Element:
    heights = [_height(picture) for picture in pictures]
    total = sum(heights) + _MARGIN * (len(pictures) + 1) + 28
    root = ET.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {total}",
        width=str(WIDTH),
        height=str(total),
        role="img",
    )
    ET.SubElement(root, "title").text = clean(title)
    ET.SubElement(root, "desc").text = clean("; ".join(f"{p.title}: {summary(p)}" for p in pictures))
    ET.SubElement(root, "style").text = STYLE
    add_rect(root, 0, 0, WIDTH, total, "page", radius=0)
    y = _MARGIN
    for picture, height in zip(pictures, heights):
        _Panel(root, picture, y).draw(height)
        y += height + _MARGIN
    _legend(root, y + 10)
    return root


def _height(picture: Picture) -> int:
    groups = sum(_group_height(group) + _GAP for group in picture.groups)
    hidden = _ROW if picture.hidden_groups else 0
    return _TOP + _LANES + max(groups + hidden, 3 * _ROW)


def _group_height(group: Group) -> int:
    return _HEADER + sum(map(_row_height, group.rows)) + (_ROW if group.hidden else 0)


def _row_height(row: Row) -> int:
    return _ROW + (_NOTE if row.reason else 0)


class _Panel:
    """One picture, from `top` down."""

    def __init__(self, root: ET.Element, picture: Picture, top: int) -> None:
        self._root = ET.SubElement(root, "g")
        self._picture = picture
        self._top = top

    def draw(self, height: int) -> None:
        """Everything, back to front."""
        bottom = self._top + height
        add_text(self._root, _MARGIN, self._top + 16, shortened(self._picture.title, 110), "h", self._picture.title)
        add_text(self._root, _MARGIN, self._top + 36, summary(self._picture), "s")
        lanes = self._top + _TOP
        add_rect(self._root, _DATASET.x - 8, lanes, _BOUNDARY - _DATASET.x, bottom - lanes, "pipe")
        add_rect(self._root, _BOUNDARY + 8, lanes, WIDTH - _MARGIN - _BOUNDARY - 8, bottom - lanes, "step")
        add_line(self._root, _BOUNDARY, lanes - 4, _BOUNDARY, bottom, "wall")
        add_text(self._root, _DATASET.x, lanes + 16, "input pipeline (tf.data), ahead of the step")
        add_text(self._root, _BOUNDARY, lanes - 8, "iterator", "s m")
        add_text(self._root, _IDS.x - 8, lanes + 16, "step (session.run)")
        for column in (_NAMES, _DATASET):
            add_text(self._root, column.x, lanes + 36, column.heading, "s")
        for column in (_IDS_AHEAD, _KEYS_AHEAD, _IDS, _KEYS, _TABLE, _REST):
            add_text(self._root, column.middle, lanes + 36, column.heading, "s m")
        y = lanes + _LANES
        self._rest(y, bottom - 8)
        for group in self._picture.groups:
            self._group(group, y)
            y += _group_height(group) + _GAP
        if self._picture.hidden_groups:
            hidden = self._picture.hidden_lookups
            self._more(y, f"and {hidden:,} lookups of {self._picture.hidden_groups:,} other batches or kinds", "box")
        if not self._picture.groups:
            add_text(self._root, _NAMES.x, y + 20, "no lookups")

    def _rest(self, top: int, bottom: int) -> None:
        picture = self._picture
        tip = "\n".join(f"{update.rule}: {update}" for update in picture.updates)
        add_rect(self._root, _REST.x, top, _REST.width, bottom - top, "box", tip=tip)
        lines = ["model", f"{picture.other_ops:,} ops"]
        if picture.updates:
            lines.extend(("", "updates", *(line for update in picture.updates for line in (update.rule, str(update)))))
        for index, text in enumerate(lines[: max(1, (bottom - top) // 16 - 1)]):
            add_text(self._root, _REST.middle, top + 18 + 16 * index, shortened(text, 21), "m" if index == 0 else "s m")

    def _group(self, group: Group, top: int) -> None:
        heading = f"{group.side}: {group.batch or 'no single batch'}"
        words = [_SIDE_WORDS.get(group.side, group.side), _STATE_WORDS[group.state], group.batch, group.fused]
        tip = "\n".join(filter(None, words))
        add_text(self._root, _NAMES.x, top + 14, shortened(heading, 28), "s", tip)
        if group.iterator:
            add_text(self._root, _BOUNDARY + 12, top + 14, shortened(group.iterator, 60), "s", group.iterator)
        first = y = top + _HEADER
        self._frames(group, first)
        for row in group.rows:
            self._row(row, y, has_dataset=bool(group.batch))
            y += _row_height(row)
        if group.hidden:
            tables = f"{group.hidden_tables:,} table{'' if group.hidden_tables == 1 else 's'}"
            what = f"and {group.hidden:,} more {group.side} lookups of {tables}: {_STATE_WORDS[group.state]}"
            self._more(y, what, group.state)
            y += _ROW
        if group.batch:
            self._dataset_box(group, first, y)

    def _dataset_box(self, group: Group, top: int, bottom: int) -> None:
        height = bottom - top - (_ROW - _BOX)
        names = list(reversed(group.datasets))
        tip = "\n".join(names) or group.batch
        add_rect(self._root, _DATASET.x, top, _DATASET.width, height, "box", tip=tip)
        room = max(1, height // 16)
        lines = [shortened(name, 20) for name in names] or ["not in this graph"]
        if len(lines) > room:
            left = len(lines) - room + 1
            lines = [f"{len(lines)} datasets"] if room == 1 else [*lines[: room - 1], f"and {left} more"]
        start = top + height / 2 - 8 * (len(lines) - 1) + 4
        for index, line in enumerate(lines):
            add_text(self._root, _DATASET.middle, start + 16 * index, line, "s m")

    def _frames(self, group: Group, top: int) -> None:
        """Around what one op does for several lookups."""
        height = sum(map(_row_height, group.rows)) + (_ROW if group.hidden else 0)
        for column, is_one in (
            (_TABLE, bool(group.fused)),
            (_KEYS_AHEAD, any(row.is_prepared for row in group.rows)),
        ):
            if is_one and len(group.rows) > 1:
                add_rect(
                    self._root,
                    column.x - 5,
                    top - 5,
                    column.width + 10,
                    height + 2,
                    "one",
                    tip="one op does all of these",
                )

    def _row(self, row: Row, top: int, *, has_dataset: bool) -> None:
        tip = f"{row.name}\n{_SIDE_WORDS.get(row.side, '')}"
        add_text(self._root, _NAMES.x, top + 15, shortened(row.name, 22), "", tip)
        is_moved = row.state == MOVED
        ids, keys = (_IDS_AHEAD, _KEYS_AHEAD) if is_moved else (_IDS, _KEYS)
        right = _DATASET.right if has_dataset else 0
        if row.ops:
            text = f"{row.ops:,} op{'' if row.ops == 1 else 's'}"
            right = self._station(ids, top, text, row.state, row.op_kinds, right)
        if row.has_unique:
            text = "unique, look ahead" if is_moved else "unique"
            right = self._station(keys, top, text, row.state, "unique keys, their counts, where each id goes", right)
        dim = f" [{row.dim}]" if row.dim else ""
        table = f"{shortened(row.table or '?', 21 - len(dim))}{dim}"
        action = "find or insert" if row.side == "train" else "find"
        tip = f"table {row.table}, {row.dim} columns: {action} keys, gather rows, spread them over the batch"
        right = self._station(_TABLE, top, table, "box", tip, right)
        add_arrow(self._root, right, _REST.x, top + _BOX / 2)
        if row.reason:
            add_text(self._root, _IDS.x, top + _BOX + 12, shortened(f"stays: {row.reason}", 62), "why", row.reason)

    def _station(self, column: _Column, top: int, text: str, style: str, tip: str, come_from: int) -> int:
        """A box with the arrow that leads to it. Returns its right edge."""
        if come_from:
            add_arrow(self._root, come_from, column.x, top + _BOX / 2)
        add_rect(self._root, column.x, top, column.width, _BOX, style, tip=tip)
        add_text(self._root, column.middle, top + 15, text, "m", tip)
        return column.right

    def _more(self, top: int, text: str, style: str) -> None:
        add_rect(self._root, _IDS_AHEAD.x, top, _TABLE.right - _IDS_AHEAD.x, _BOX, style)
        add_text(self._root, (_IDS_AHEAD.x + _TABLE.right) / 2, top + 15, shortened(text, 90), "m")


def _legend(root: ET.Element, y: int) -> None:
    x = _NAMES.x
    for style, text in (
        ("moved", "moved into the input pipeline"),
        ("movable", "recgraph rewrite would move it"),
        ("stays", "stays at the step"),
        ("one", "one op does all in the frame"),
    ):
        add_rect(root, x, y, 24, 14, style)
        add_text(root, x + 32, y + 11, text, "s")
        x += 240


def _table(body: ET.Element, picture: Picture) -> None:
    rows = [row for group in picture.groups for row in group.rows]
    if not rows:
        return
    table = ET.SubElement(body, "table")
    _cells(table, "th", ("lookup", "table", "dim", "side", "state", "batch to ids"))
    for row in rows:
        state = f"{row.state}: {row.reason}" if row.reason else row.state
        _cells(table, "td", (row.name, row.table, str(row.dim), row.side, state, row.op_kinds or "-"))


def _cells(table: ET.Element, tag: str, texts: Iterable[str]) -> None:
    line = ET.SubElement(table, "tr")
    for text in texts:
        ET.SubElement(line, tag).text = clean(text)
