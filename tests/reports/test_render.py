"""The layout that all reports share: bytes for people, tables, missing extras, bars."""

import sys

import matplotlib as mpl
import pytest

from tfps.errors import MissingExtraError
from tfps.reports.render import (
    Table,
    html_report,
    human_bytes,
    import_extra,
    shorten,
    stacked_bars,
    text_report,
)

mpl.use("Agg")


def table(rows):
    return Table("Things", ("name", "bytes"), rows, frozenset({"bytes"}))


@pytest.fixture
def draw():
    """Draws bars on a figure that is closed again, and returns the axes after a real rendering."""
    from matplotlib import pyplot

    def draw_bars(parts):
        axes = stacked_bars(parts, title="bars", xlabel="position")
        axes.figure.canvas.draw()
        return axes

    yield draw_bars
    pyplot.close("all")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (104, "104 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1536, "1.5 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (19_200_000, "19.2 MB"),
        (6_400_000_000, "6.4 GB"),
        (2.5e12, "2.5 TB"),
        (3e18, "3,000.0 PB"),
    ],
)
def test_bytes_are_written_for_people(count, text):
    assert human_bytes(count) == text


def test_the_middle_of_a_long_name_is_cut():
    assert shorten("abcdefghijklmnop", 12) == "abc...klmnop"
    assert shorten("abcdefghijkl", 12) == "abcdefghijkl"


def test_plain_text_aligns_its_columns():
    text = text_report("Heading", [table([("a", "7 B"), ("longer", "12.3 kB")])], ["A sentence."])
    assert text == (
        "Heading\n\nThings\nname      bytes\n------  -------\na           7 B\nlonger  12.3 kB\n\nA sentence."
    )


def test_a_long_table_is_cut_and_says_how_much_it_leaves_out():
    text = text_report("Heading", [table([(f"row{i}", "1 B") for i in range(1020)])], [])
    assert "row19" in text
    assert "row20" not in text
    assert text.endswith("... and 1,000 more; to_dict() has them all.")


def test_long_tables_start_collapsed_in_html():
    assert html_report("Heading", [table([("a", "1 B")] * 20)], []).count("<details open>") == 1
    long = html_report("Heading", [table([("a", "1 B")] * 21)], [])
    assert "<details>" in long
    assert "<details open>" not in long


def test_html_escapes_everything_that_it_is_given():
    html = html_report("<b>1", [Table("<b>2", ("<b>3",), [("<b>4",)], frozenset())], ["<b>5"])
    assert "<b>" not in html
    assert all(f"&lt;b&gt;{number}" in html for number in range(1, 6))


@pytest.mark.parametrize("module", ["pandas", "matplotlib.pyplot"])
def test_a_missing_extra_names_its_remedy(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install tfps\[report\]"):
        import_extra(module, ".plot()")


def test_bars_stack_to_the_total_of_each_position(draw):
    axes = draw({"a": [3, 0], "b": [4, 5]})
    tops = [max(bar.get_y() + bar.get_height() for bar in position) for position in zip(*axes.containers, strict=True)]
    assert tops == [7, 5]
    assert [text.get_text() for text in axes.texts] == ["7 B", "5 B"]
    assert axes.get_ylim()[1] > 7


def test_one_part_has_one_colour_and_the_legend_knows_it(draw):
    axes = draw({"_hidden": [3_000, 1_000], "costs$": [1_000, 2_000], "$\\frac$": [1, 1]})
    legend = axes.get_legend()
    named = {
        text.get_text(): patch.get_facecolor() for text, patch in zip(legend.texts, legend.legend_handles, strict=True)
    }
    assert list(named) == ["$\\frac$ (2 B)", "costs$ (3.0 kB)", "_hidden (4.0 kB)"]
    largest = axes.containers[0]
    assert {bar.get_facecolor() for bar in largest} == {named["_hidden (4.0 kB)"]}
    assert len(set(named.values())) == 3


def test_the_small_parts_of_many_are_drawn_as_one(draw):
    axes = draw({f"part{size}": [size, size] for size in range(1, 13)})
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    # 1 + 2 + 3 + 4 + 5 bytes, twice.
    assert names[0] == "5 others (30 B)"
    assert names[-1] == "part12 (24 B)"
    assert len(names) == 8


def test_nothing_can_be_drawn(draw):
    assert draw({}).get_legend().get_texts() == []


def test_bars_go_where_the_user_wants_them():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    assert stacked_bars({"a": [1]}, title="bars", xlabel="position", ax=axes) is axes
