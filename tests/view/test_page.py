"""The page in a real browser: clicks, keys and pictures."""

from __future__ import annotations

import numpy as np
import pytest

from bf16codecs.convert import safetensors_to_zarr
from lazy_models import weights, write_safetensors
from servers import serving
from viewing import viewing

pytestmark = pytest.mark.slow

UP = "model.layers.0.mlp.up_proj.weight"
CELLS = "canvas.cells"


def test_the_whole_model(look_at, store):
    looking = look_at(store)
    page = looking.page
    assert "model.zarr" in looking.text("#where")
    assert "parameters" in looking.text("main")
    with viewing(store) as client:
        tensors = client.ask("contents", step="model.zarr")["tensors"]
    drawn = page.eval_on_selector_all(
        ".treemap [data-tensor]", "all => all.map(own => own.dataset.tensor)"
    )
    large = [row["name"] for row in tensors if row["nbytes"] > 10_000]
    assert set(large) <= set(drawn)
    colours = page.eval_on_selector_all(
        ".treemap [data-tensor]", "all => all.map(own => own.style.fill)"
    )
    assert len(set(colours)) > 3
    assert len(looking.screenshot()) > 20_000
    looking.choose("#colour", "ratio")
    assert looking.query["colour"] == "ratio"


def test_a_click_leads_to_a_tensor_and_back(look_at, store):
    looking = look_at(store)
    looking.click(f'.treemap [data-tensor="{UP}"]')
    assert looking.query["tensor"] == UP
    assert looking.text("h1") == UP
    assert looking.page.title().startswith(UP)
    assert looking.colours() > 50
    selected = looking.page.get_attribute('[aria-selected="true"]', "data-tensor")
    assert selected == UP
    assert "Exponents" in looking.text("#panels")
    looking.screenshot()
    looking.page.go_back()
    looking.settle()
    assert looking.page.query_selector(".treemap")
    looking.page.go_forward()
    looking.settle()
    assert looking.text("h1") == UP


def test_search(look_at, store):
    looking = look_at(store)
    looking.key("/")
    looking.page.keyboard.type("layers.1 proj")
    looking.settle()
    names = looking.page.eval_on_selector_all(
        "#tree [data-tensor]", "all => all.map(own => own.dataset.tensor)"
    )
    assert names
    assert all("layers.1." in name and "proj" in name for name in names)
    assert looking.text("#found").startswith(f"{len(names)} tensors of ")
    assert looking.query["search"] == "layers.1 proj"
    looking.key("Enter")
    assert looking.query["tensor"] == names[0]
    looking.key("/", "Escape")
    assert "search" not in looking.query
    looking.page.fill("#search", "nothing like this")
    looking.settle()
    assert looking.text("#found").startswith("0 tensors")


def test_the_tree_by_keyboard(look_at, store):
    looking = look_at(store)
    looking.key("/", "ArrowDown")
    active = "document.activeElement.getAttribute"
    assert looking.page.evaluate(f"() => {active}('role')") == "treeitem"
    looking.key("ArrowLeft")
    assert looking.page.evaluate(f"() => {active}('aria-expanded')") == "false"
    looking.key("ArrowRight", "ArrowRight", "End", "Enter")
    assert looking.query["tensor"]
    first = looking.query["tensor"]
    looking.key("p")
    assert looking.query["tensor"] != first
    looking.key("n")
    assert looking.query["tensor"] == first
    looking.key("Escape")
    assert "tensor" not in looking.query
    looking.key("?")
    assert looking.page.is_visible("#keys")
    looking.key("Escape")
    assert not looking.page.is_visible("#keys")


def test_zoom(look_at, store):
    looking = look_at(store, query=f"?tensor={UP}")
    rows, columns = (int(part) for part in _shape(looking))
    assert looking.shown() == f"value 0:{rows} 0:{columns}"
    looking.click("#zoom-in")
    assert looking.query["rows"] == f"{rows // 4}:{rows // 4 + rows // 2}"
    assert looking.shown().endswith(f"{looking.query['rows']} {looking.query['columns']}")
    looking.page.focus(CELLS)
    looking.key("+", "+")
    first, last = map(int, looking.query["rows"].split(":"))
    assert last - first == rows // 8
    looking.key("s", "d")
    assert looking.query["rows"] == f"{first + rows // 32}:{last + rows // 32}"
    looking.page.hover(CELLS, position={"x": 5, "y": 5})
    looking.page.mouse.wheel(0, -400)
    looking.settle()
    nearer = list(map(int, looking.query["rows"].split(":")))
    assert nearer[1] - nearer[0] < last - first
    assert nearer[0] == first + rows // 32
    looking.key("0")
    assert "rows" not in looking.query
    assert looking.shown() == f"value 0:{rows} 0:{columns}"


def _shape(looking):
    text = next(line for line in looking.text(".facts").split("\n") if line.startswith("shape"))
    return text.split(": ")[1].split("\N{MULTIPLICATION SIGN}")


def test_dragging(look_at, store):
    looking = look_at(store, query=f"?tensor={UP}&rows=20:40&columns=20:40")
    box = looking.page.locator(CELLS).bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    mouse = looking.page.mouse
    mouse.move(*middle)
    mouse.down()
    mouse.move(middle[0] - box["width"] / 4, middle[1] - box["height"] / 4, steps=5)
    mouse.up()
    looking.settle()
    assert looking.query["rows"] == "25:45"
    assert looking.query["columns"] == "25:45"
    looking.page.keyboard.down("Shift")
    mouse.move(box["x"] + 2, box["y"] + 2)
    mouse.down()
    mouse.move(*middle, steps=5)
    mouse.up()
    looking.page.keyboard.up("Shift")
    looking.settle()
    assert looking.query["rows"] == "25:35"
    assert looking.query["columns"] == "25:35"


def test_values_and_their_bits(look_at, tmp_path):
    values = weights((40, 40))
    values[3, 2], values[3, 3] = np.nan, -0.0
    source = write_safetensors(tmp_path / "m.safetensors", {"w": values})
    looking = look_at(source, query="?tensor=w&rows=0:8&columns=0:8")
    box = looking.page.locator(CELLS).bounding_box()

    def readout_at(row, column):
        across, down = (column + 0.5) / 8, (row + 0.5) / 8
        looking.page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        return looking.text("#readout")

    bits = values.view(np.uint16)
    assert readout_at(1, 5) == f"[1, 5] = {float(values[1, 5]):.4g} (bits {bits[1, 5]:04x})"
    assert readout_at(3, 2) == f"[3, 2] = nan (bits {bits[3, 2]:04x}) infinite or NaN"
    assert readout_at(3, 3) == "[3, 3] = -0 (bits 8000)"
    looking.screenshot()


@pytest.mark.parametrize(
    ("shape", "part", "index"),
    [((5000,), "rows=1:3&columns=3:5", (131,)), ((3, 4, 6, 5), "rows=30:40", (1, 1, 0, 0))],
)
def test_the_place_of_a_value_is_that_in_its_tensor(look_at, tmp_path, shape, part, index):
    """A long tensor of one dimension is wrapped, here to rows of 128; others are rows of rows."""
    values = weights(shape)
    source = write_safetensors(tmp_path / "m.safetensors", {"w": values})
    looking = look_at(source, query=f"?tensor=w&{part}")
    looking.page.focus(CELLS)
    looking.key(*["ArrowUp"] * 8, *["ArrowLeft"] * 4)
    told = f"[{', '.join(map(str, index))}] = {float(values[index]):.4g} "
    assert looking.text("#readout").startswith(told)


def test_the_address_is_all_there_is(look_at, store):
    looking = look_at(store, query=f"?tensor={UP}")
    looking.click("#zoom-in")
    looking.choose("#show", "magnitude")
    other = look_at(client=looking.client, query="?" + looking.page.url.partition("?")[2])
    assert other.query == looking.query
    assert other.shown() == looking.shown()
    assert other.colours() == looking.colours()
    assert other.text(".legend") == looking.text(".legend")
    # Two browsers at once do not meet.
    other.key("Escape")
    assert looking.text("h1") == UP


def test_names_never_become_markup(look_at, tmp_path):
    name = '<img src=x onerror=alert(1)>."><script>alert(2)</script>.weight'
    arrays = {name: weights((64, 64)), "%2e%2e/&amp;": weights((4,)), "": weights((2, 2))}
    looking = look_at(write_safetensors(tmp_path / "<b>m.safetensors", arrays))
    assert not looking.page.query_selector("main img, nav img, main script, header b")
    looking.page.fill("#search", "img")
    looking.key("Enter")
    assert looking.text("h1") == name
    looking.page.fill("#search", "%2e")
    looking.page.keyboard.press("Enter")
    looking.settle()
    assert looking.text("h1") == "%2e%2e/&amp;"


def test_models_without_much(look_at, tmp_path):
    arrays = {"empty": weights((0, 4)), "n": np.full((20, 20), np.nan, "f4"), "s": weights(())}
    looking = look_at(write_safetensors(tmp_path / "m.safetensors", arrays))
    for name, told in {"empty": "It has no values", "n": "n", "s": "scalar"}.items():
        looking.open(f"?tensor={name}")
        assert told in looking.text("main")
        assert not looking.page.is_visible("#error")
    none = look_at(write_safetensors(tmp_path / "none.safetensors", {}))
    assert "tensors: 0" in none.text("main")


def test_damage_is_reported_and_the_rest_is_shown(look_at, tmp_path):
    values = weights((512, 512))
    source = write_safetensors(
        tmp_path / "m.safetensors", {"w": values, "whole": weights((64, 64))}
    )
    safetensors_to_zarr(source, tmp_path / "m.zarr", chunk_size=1 << 17)
    files = [path for path in (tmp_path / "m.zarr").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    looking = look_at(tmp_path / "m.zarr", query="?tensor=w")
    assert "restore it from its source" in looking.text("#damage")
    assert looking.colours() > 50
    assert "Not all could be read" in looking.text("#panels")
    looking.screenshot()
    looking.open("?tensor=whole")
    assert not looking.page.is_visible("#damage")


def test_tensors_are_in_the_order_of_their_numbers(look_at, tmp_path):
    arrays = {f"layers.{n}.weight": weights((8, 8)) for n in range(12)}
    looking = look_at(write_safetensors(tmp_path / "m.safetensors", dict(sorted(arrays.items()))))
    names = looking.page.eval_on_selector_all(
        "#tree [data-tensor]", "all => all.map(own => own.dataset.tensor)"
    )
    assert names == list(arrays)


def test_what_is_not_there(look_at, store):
    looking = look_at(store, query="?tensor=nope&step=99&show=x&rows=5:1&against=y")
    looking.expected = "404"
    assert "no tensor 'nope'" in looking.text("#error")
    other = look_at(client=looking.client, query="?step=99&against=y")
    assert looking.text("h1") == "nope"
    expected = "There is no step 99: this is model.zarr, and no y to compare with."
    assert other.text("#error") == expected
    looking.key("Escape")
    assert not looking.page.is_visible("#error")
    assert looking.page.query_selector(".treemap")


def test_the_end_of_the_server_is_reported(look_at, store):
    with viewing(store) as client:
        looking = look_at(client=client)
    looking.expected = "net::ERR_"
    looking.page.click(f'.treemap [data-tensor="{UP}"]')
    looking.page.wait_for_selector("#error:not([hidden])")
    assert "start bf16codecs view again" in looking.text("#error")


def test_a_store_at_an_address_is_read_as_far_as_it_is_in_sight(look_at, tmp_path):
    pytest.importorskip("aiohttp")
    values = weights((16384, 2048))
    source = write_safetensors(tmp_path / "m.safetensors", {"w": values})
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    with serving(tmp_path) as server:
        looking = look_at(f"{server.url}/m.zarr")
        assert sum(server.sent) < 100_000
        looking.open("?tensor=w&rows=5000:5020&columns=7:30")
        assert looking.page.get_attribute(".heat", "data-whole") == "true"
        # The sample for the histograms is a part of it.
        assert sum(server.sent) < values.nbytes / 10


def test_values_by_keyboard(look_at, tmp_path):
    values = weights((40, 40))
    source = write_safetensors(tmp_path / "m.safetensors", {"w": values})
    looking = look_at(source, query="?tensor=w&rows=0:8&columns=0:8")
    looking.page.focus(CELLS)
    looking.key("ArrowDown", "ArrowRight", "ArrowRight")
    assert looking.text("#readout").startswith(f"[4, 6] = {float(values[4, 6]):.4g} ")
    looking.key(*["ArrowRight"] * 5)
    assert looking.text("#readout").startswith(f"[4, 7] = {float(values[4, 7]):.4g} ")
