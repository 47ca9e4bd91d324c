"""Pictures and the report: all are drawn, with titles and units, and need no network."""

from __future__ import annotations

import io
import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import tiers
from based_models import write_steps
from bf16codecs.analysis import analyze, study_blocks, tables
from bf16codecs.analysis.tables import summary
from lazy_imports import lazily
from lazy_models import weights, write_safetensors

html = lazily("bf16codecs.analysis.html_report")
plots = lazily("bf16codecs.analysis.plots")
pyplot = lazily("matplotlib.pyplot")

RESULTS = [
    {"name": name, "ratio": ratio, "decode_gbps": speed, "encode_gbps": speed / 2}
    for name, ratio, speed in (("memcpy", 1, 10), ("BF16Huffman", 1.5, 5), ("Zstd 1", 1.3, 0.9))
]


@pytest.fixture(scope="module", autouse=True)
def matplotlib():
    return pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture(scope="module")
def series(tmp_path_factory, demo_model):
    return analyze(list(write_steps(tmp_path_factory.mktemp("steps"), demo_model).values()))


@pytest.fixture(scope="module", autouse=True)
def pictures(matplotlib):
    """Yield all pictures. Reports have few in the quick tier, since saving takes long."""
    every, few = html.pictures, ("exponents", "changed_bits")
    with pytest.MonkeyPatch.context() as patch:
        if not tiers.IS_FULL:
            name = "bf16codecs.analysis.html_report.pictures"
            patch.setattr(name, lambda found: (p for p in every(found) if p[0] in few))
        yield every


@pytest.fixture(scope="module")
def drawn(series, pictures, tmp_path_factory):
    """All pictures, by name."""
    large = tmp_path_factory.mktemp("large") / "m.safetensors"
    blocks = analyze(write_safetensors(large, {"w": weights((300, 300))})).model
    functions = {
        **{name: draw for name, _, draw in pictures(series)},
        "block_sizes": lambda: plots.block_sizes({"huffman": [(4096, 10.6), (1 << 20, 10.5)]}),
        "ratio_and_speed": lambda: plots.ratio_and_speed(RESULTS),
        "of a tensor": lambda: plots.exponents(series.tensors[0]),
        "by exponent": lambda: plots.bits_by_layer(series, "exponent"),
        "best": lambda: plots.bits_over_steps(series, "arithmetic best"),
        "block_entropies": lambda: plots.block_entropies(blocks),
    }
    with plots.style("light"):
        found = {name: draw() for name, draw in functions.items()}
    yield found
    pyplot.close("all")  # matplotlib warns of many open figures


@pytest.mark.slow
def test_all_have_titles_and_units(drawn):
    assert {"exponents", "high_byte", "set_bits", "predictions", "steps", "changed_bits"} <= set(
        drawn
    )
    for name, axes in drawn.items():
        assert axes.get_title(loc="left"), name
        assert axes.get_xlabel(), name
        assert axes.get_ylabel(), name


def test_axes_that_are_given_are_drawn_on(series):
    figure, axes = pyplot.subplots(1, 2)
    assert plots.exponents(series.model, axes[0]) is axes[0]
    assert plots.set_bits(series.model, axes[1]) is axes[1]
    assert all(a.patches for a in axes)
    pyplot.close(figure)


def test_what_is_drawn_is_what_was_found(series):
    axes = plots.set_bits(series.model)
    pyplot.close(axes.figure)
    heights = [bar.get_height() / 100 for bar in axes.patches]
    assert heights == pytest.approx(series.model.statistics.set_bits)
    axes = plots.bytes_histogram(series.model, "low")
    pyplot.close(axes.figure)
    assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(100)
    (image,) = plots.changed_bits(series).images
    pyplot.close(image.figure)
    last = series.steps[-1].model.statistics.change.flipped
    assert image.get_array()[-1].tolist() == pytest.approx([100 * part for part in last])


def test_many_steps_are_not_all_named(series):
    steps = [replace(series.steps[n > 0], step=str(n)) for n in range(100)]
    many = replace(series, steps=steps)
    over, changed = plots.bits_over_steps(many), plots.changed_bits(many)
    for axis, first in ((over.xaxis, 0), (changed.yaxis, 1)):
        pyplot.close(axis.axes.figure)
        named = [label.get_text() for label in axis.get_ticklabels()]
        assert 8 <= len(named) <= 16
        assert named == [str(first + round(place)) for place in axis.get_ticklocs()]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_powers_and_what_is_none(tmp_path, dtype):
    """Powers are those of the values; zeros, infinities and NaNs have a name and no power."""
    values = np.array([0, 0, 1, 1, 1, 2, 8, np.nan], dtype)
    path = write_safetensors(tmp_path / "m.safetensors", {"w": values})
    axes = plots.exponents(analyze(path).model)
    pyplot.close(axes.figure)
    heights = {
        round(bar.get_x() + bar.get_width() / 2): bar.get_height() / 12.5 for bar in axes.patches
    }
    names = {
        round(place): label.get_text().replace("\N{MINUS SIGN}", "-")
        for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    }
    assert {power: heights[power] for power in range(4)} == {0: 3, 1: 1, 2: 0, 3: 1}
    if dtype == "float8_e4m3fn":  # the NaN has an exponent of numbers
        expected = {-2: ("0", 2)}
    else:
        expected = {-2: ("0", 2), 5: ("inf, NaN", 1)}
    assert {at: (names[at], heights[at]) for at in expected} == expected


def test_nothing_but_zeros_and_infinities_can_be_drawn(tmp_path):
    values = {"w": np.array([0, np.inf], "float16")}
    axes = plots.exponents(analyze(write_safetensors(tmp_path / "m.safetensors", values)).model)
    pyplot.close(axes.figure)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "inf, NaN"]


@pytest.mark.slow
def test_titles_say_nothing_that_data_may_deny(tmp_path, series):
    smooth = np.linspace(1, 2, 9000, dtype="float32").reshape(90, 100).astype("bfloat16")
    base = write_safetensors(tmp_path / "base.safetensors", {"w": smooth})
    model = write_safetensors(tmp_path / "m.safetensors", {"w": -smooth})
    found = analyze(model, base)
    with plots.style():
        drawn = [
            *(plots.changed_bits(found), plots.changed_bits(series)),
            *(plots.predictions(found.model), plots.set_bits(found.model)),
        ]
    titles = [axes.get_title(loc="left").splitlines()[0] for axes in drawn]
    assert titles == [
        "Which bits differ from the base",
        "Which bits differ from step to step",
        "What neighbours tell of the exponent",
        "In which part of the values each bit is set",
    ]
    for axes in drawn:
        pyplot.close(axes.figure)
    page = html.report(found)
    assert "trained model" not in page
    assert "training" not in page


def test_pictures_that_cannot_be_drawn(tmp_path, demo_model):
    found = analyze(
        write_safetensors(tmp_path / "m.safetensors", {"w": weights((9, 9), "float32")})
    )
    whole = analyze(demo_model)
    with pytest.raises(ValueError, match="no series of checkpoints"):
        plots.bits_over_steps(found)
    with pytest.raises(ValueError, match="compared with nothing"):
        plots.changed_bits(found)
    with pytest.raises(ValueError, match="no blocks of floating-point numbers"):
        plots.block_entropies(found.model)
    with pytest.raises(ValueError, match="'high' or 'low'"):
        plots.bytes_histogram(whole.model, "middle")
    with pytest.raises(ValueError, match="light or dark"), plots.style("grey"):
        pass
    with pytest.raises(ValueError, match="'decode' or 'encode'"):
        plots.ratio_and_speed(RESULTS, "both")


def test_pictures_as_files(series):
    png, svg = io.BytesIO(), io.StringIO()
    with plots.style("dark"):
        plots.save(plots.exponents(series.model), png, "png")
        plots.save(plots.exponents(series.model), svg, "svg")
    assert png.getvalue().startswith(b"\x89PNG")
    assert ET.fromstring(svg.getvalue()).tag.endswith("svg")
    again = io.StringIO()
    with plots.style("dark"):
        plots.save(plots.exponents(series.model), again, "svg")
    assert again.getvalue() == svg.getvalue()


class Page(HTMLParser):
    """The addresses that a page refers to, and the ids in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href", "xlink:href"):
                self.addresses.append(value)
            if name == "id":
                self.ids.append(value)


def rows_of(points):
    """Rows of a benchmark, by name: speed, ratio."""
    return [
        {"name": name, "ratio": ratio, "decode_gbps": speed, "encode_gbps": speed, "threads": 1}
        for name, (speed, ratio) in points.items()
    ]


def boxes_of(axes):
    from matplotlib.text import Text

    return {text.get_text(): Text.get_window_extent(text) for text in axes.texts}


def test_names_of_a_crowd_do_not_overlap():
    crowd = {f"BF16 codec {i}": (1 + i / 100, 1.5 + i % 3 / 1000) for i in range(12)}
    rows = rows_of({**crowd, "memcpy": (20.0, 1.0), "LZMA 1": (0.01, 1.3)})
    with plots.style():
        axes = plots.ratio_and_speed(rows)
    axes.figure.draw_without_rendering()
    boxes = boxes_of(axes)
    assert boxes.keys() == {*crowd, "LZMA 1"}, "memcpy is a line"
    for (name, box), (other, its) in itertools.combinations(boxes.items(), 2):
        assert not box.overlaps(its), f"{name} covers {other}"
    for name, box in boxes.items():
        assert axes.bbox.contains(box.x0, box.y0), name
        assert axes.bbox.contains(box.x1, box.y1), name


def test_the_line_joins_those_that_no_other_one_beats():
    points = {
        "memcpy": (20.0, 1.0),
        "fast": (10.0, 1.2),
        "beaten": (5.0, 1.1),
        "as fast as fast": (10.0, 1.1),
        "BF16 small": (2.0, 1.5),
    }
    axes = plots.ratio_and_speed(rows_of(points), "encode")
    copying, line = axes.lines
    assert set(copying.get_xdata()) == {20.0}
    assert line.get_xydata().tolist() == [[10, 1.2], [2, 1.5]]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["this package", "others", "filled: no other is better in both", "memcpy"]
    filled = [bool(color[3]) for group in axes.collections for color in group.get_facecolor()]
    assert sum(filled) == 2


@pytest.mark.slow
def test_a_picture_of_several_tables():
    near, far = {"a": (1.0, 1.5), "b": (2.0, 1.4)}, {"a": (1.0, 1.5), "c": (2.0, 12.0)}
    two = [row | {"threads": n} for row in rows_of(far) for n in (1, 2)]
    with plots.style("dark"):
        figure = plots.ratios_and_speeds({"one": rows_of(near), "other": two, "none": []})
    assert [axes.get_title(loc="left").partition(":")[0] for axes in figure.axes] == [
        *["one"] * 2, *["other"] * 2, *["none"] * 2,
    ]  # fmt: skip
    assert [axes.get_yscale() for axes in figure.axes[:4]] == ["linear"] * 2 + ["log"] * 2
    assert "of one thread" in figure.axes[0].get_xlabel()
    assert "thread" not in figure.axes[2].get_xlabel()
    assert boxes_of(figure.axes[2]).keys() == {
        f"{name}, {threads}" for name in "ac" for threads in ("1 thread", "2 threads")
    }
    file = io.BytesIO()
    plots.save(figure.axes[0], file, "pdf")
    assert file.getvalue().startswith(b"%PDF")


@pytest.fixture(scope="module")
def written(series, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "r.html"
    html.write_report(series, path)
    return path.read_text("utf-8")


def test_a_report_is_what_is_written(series, written):
    assert html.report(series) == written


def test_a_report(series, written):
    page = Page(written)
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in page.addresses)
    assert not re.search(r"""url\(['"]?(?!#)|@import""", written)
    assert len(page.ids) == len(set(page.ids)), "pictures share no ids"
    assert {a[1:] for a in page.addresses if a.startswith("#")} <= set(page.ids)
    for tensor in series.tensors:
        assert tensor.name in written


def test_titles_of_columns_are_buttons(written):
    """Keyboards reach them, and screen readers announce the order."""
    titles = re.findall(r"<th\b.*?</th>", written)
    assert len(titles) > 40
    assert all(re.fullmatch(r"<th[^>]*><button type=.button.>.+</button></th>", t) for t in titles)
    assert "aria-sort" in written


def test_a_report_has_the_tables_of_the_command(series, written):
    """They have the same titles, and the same figures but for counts."""
    for title in (*tables.KINDS, *tables.CHANGES, *tables.STEPS):
        assert f">{title}</button>" in written
    for group in series.kinds:
        for cell in tables.change_row(group, group.statistics.change):
            assert f">{tables.shown(cell)}</td>" in written
    for line in summary(series):
        assert f"<p>{line}</p>" in written


@pytest.mark.slow
def test_a_report_of_strange_names(tmp_path):
    name = '<script>alert("x")</script>'
    found = analyze(write_safetensors(tmp_path / "m.safetensors", {name: weights((9, 9))}))
    assert name not in html.report(found)


def test_block_sizes(demo_model):
    study = study_blocks(demo_model, [1 << 12, 1 << 16])
    for points in study.values():
        assert [size for size, _ in points] == [1 << 12, 1 << 16]
        assert points[0][1] > points[1][1] > 10, "small blocks have more heads and tables"
    with pytest.raises(ValueError, match="a block's size must be 1 to"):
        study_blocks(demo_model, [0])


def test_block_sizes_of_no_floats(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", {"w": np.arange(9)})
    with pytest.raises(ValueError, match="has no floating-point numbers"):
        study_blocks(path)


def test_without_matplotlib(run_python):
    done = run_python(
        "import sys; sys.modules['matplotlib'] = None\n"
        "from bf16codecs import analysis\n"
        "try:\n    analysis.plots\nexcept ImportError as e:\n    print(e)"
    )
    assert "pip install 'bf16codecs[plot]'" in done.stdout
