"""How every report is shown: tables of text cells enter; plain text, HTML or bars leave.

A report decides what its cells say; this module only lays them out, so that all reports look alike. Plain
text and HTML need nothing but Python; pandas and matplotlib are imported when first asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from textwrap import fill
from typing import TYPE_CHECKING, Any

from tfps.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEXT_ROWS = 20
HTML_ROWS = 500
TEXT_CELL_WIDTH = 60
TEXT_LINE_WIDTH = 100
LEGEND_WIDTH = 44
NAMED_PARTS = 7
MOST_LABELLED_BARS = 12


@dataclass(frozen=True)
class Table:
    """A table whose cells are text already.

    Attributes:
        title: What the rows are, shown above the table.
        columns: The heading of each column.
        rows: One tuple of cells per row, the most important row first: long tables are cut at the end.
        right: The headings of the columns that are aligned to the right.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: frozenset[str]

    def rows_left_out(self, limit: int) -> str:
        """Says how many rows lie beyond `limit`, or nothing."""
        more = len(self.rows) - limit
        return f"... and {more:,} more; to_dict() has them all." if more > 0 else ""


def human_bytes(count: float) -> str:
    """Writes a number of bytes as people read it, in powers of 1,000.

    Args:
        count: A number of bytes.

    Returns:
        For example `"12 B"`, `"1.5 kB"` or `"19.2 MB"`.

    Example:
        >>> human_bytes(19_200_000)
        '19.2 MB'
    """
    # 999.95 is where one decimal starts to round up to 1,000.0.
    if count < 999.95:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:,.1f} PB"


def shorten(text: str, width: int) -> str:
    """Cuts the middle out of `text` where it is longer than `width`: the two ends of a path say the most."""
    if len(text) <= width:
        return text
    tail = (width - 3) * 2 // 3
    return f"{text[: width - 3 - tail]}...{text[-tail:]}"


def text_report(heading: str, tables: Sequence[Table], sentences: Sequence[str]) -> str:
    """Lays a report out as plain text: the heading, the tables, and the sentences."""
    wrapped = [fill(sentence, TEXT_LINE_WIDTH, break_on_hyphens=False) for sentence in sentences]
    return "\n\n".join([heading, *map(_text_table, tables), "\n".join(wrapped)]).rstrip()


def _text_table(table: Table) -> str:
    shown = [tuple(shorten(cell, TEXT_CELL_WIDTH) for cell in row) for row in islice(table.rows, TEXT_ROWS)]
    lines = [table.columns, *shown]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    text = [table.title]
    for line in lines:
        cells = zip(line, table.columns, widths, strict=True)
        aligned = (cell.rjust(width) if column in table.right else cell.ljust(width) for cell, column, width in cells)
        text.append("  ".join(aligned).rstrip())
    return "\n".join([*text, table.rows_left_out(TEXT_ROWS)]).rstrip()


def html_report(heading: str, tables: Sequence[Table], sentences: Sequence[str]) -> str:
    """Lays a report out as HTML; long tables start collapsed, and every cell is escaped."""
    paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f"<div><strong>{escape(heading)}</strong>{''.join(map(_html_table, tables))}{paragraphs}</div>"


def _html_table(table: Table) -> str:
    sides = ["right" if column in table.right else "left" for column in table.columns]

    def line(tag: str, texts: tuple[str, ...]) -> str:
        cells = (
            f'<{tag} style="text-align:{side}">{escape(text)}</{tag}>' for text, side in zip(texts, sides, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    opened = " open" if len(table.rows) <= TEXT_ROWS else ""
    body = "".join(line("td", row) for row in islice(table.rows, HTML_ROWS))
    return (
        f"<details{opened}><summary>{escape(table.title)}</summary>"
        f"<table><thead>{line('th', table.columns)}</thead><tbody>{body}</tbody></table>"
        f"{table.rows_left_out(HTML_ROWS)}</details>"
    )


def import_extra(module: str, purpose: str) -> Any:
    """Imports a module that the `report` extra brings.

    Args:
        module: The module, for example `"matplotlib.pyplot"`.
        purpose: What needs it, for the message: the call that the user made.

    Returns:
        The module.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{module.partition('.')[0]} must be installed for {purpose}. Received: {error}. "
            "Install it with: pip install tfps[report]"
        ) from error


def stacked_bars(parts: Mapping[str, Sequence[int]], *, title: str, xlabel: str, ax: Axes | None = None) -> Axes:
    """Draws one bar of bytes per position, stacked from parts that keep their colour from bar to bar.

    Args:
        parts: The bytes of each named part at every position, sequences of one length. The largest parts are
            named in the legend, the rest are drawn as one.
        title: The title of the plot.
        xlabel: What the positions are.
        ax: Where to draw; by default a new figure.

    Returns:
        The axes drawn on.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    if ax is None:
        pyplot = import_extra("matplotlib.pyplot", ".plot()")
        ax = pyplot.subplots(figsize=(9, 4.5), layout="constrained")[1]
    ticker = import_extra("matplotlib.ticker", ".plot()")
    largest_first = sorted(parts.items(), key=lambda part: -sum(part[1]))
    layers: list[tuple[str, Sequence[int], str]] = [
        (shorten(name, LEGEND_WIDTH), heights, f"C{number}")
        for number, (name, heights) in enumerate(largest_first[:NAMED_PARTS])
    ]
    if others := largest_first[NAMED_PARTS:]:
        rest = [sum(column) for column in zip(*(heights for _, heights in others), strict=True)]
        layers.append((f"{len(others):,} others", rest, "lightgrey"))

    tops = [0] * len(next(iter(parts.values()), ()))
    names, bars = [], []
    for name, heights, colour in layers:
        names.append(f"{name} ({human_bytes(sum(heights))})")
        bars.append(ax.bar(range(len(heights)), heights, bottom=tops, color=colour, width=0.7))
        tops = [low + height for low, height in zip(tops, heights, strict=True)]
    if len(tops) <= MOST_LABELLED_BARS:
        for position, top in enumerate(tops):
            ax.annotate(
                human_bytes(top),
                (position, top),
                (0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
            )
    ax.set_xlim(-0.6, max(len(tops), 1) - 0.4)
    # The room above the bars is for their labels.
    ax.set_ylim(0, 1.12 * max(tops, default=0) or 1)
    ax.set(title=title, xlabel=xlabel, ylabel="bytes")
    ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: human_bytes(value)))
    # What lies on top of the bars stands on top of the legend. The names are set afterwards, since a legend
    # hides those that start with "_" and reads "$" as mathematics.
    placeholders = [str(number) for number in range(len(bars))]
    legend = ax.legend(bars[::-1], placeholders, loc="upper left", bbox_to_anchor=(1, 1))
    for entry, name in zip(legend.get_texts(), names[::-1], strict=True):
        entry.set_parse_math(False)
        entry.set_text(name)
    return ax
