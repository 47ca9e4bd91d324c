"""Several checkpoints in a real browser: the slider, and the changes."""

from __future__ import annotations

import numpy as np
import pytest

from bf16codecs.convert import safetensors_to_run
from lazy_models import weights, write_safetensors

pytestmark = pytest.mark.slow

CELLS = "canvas.cells"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run of four steps, of which each changes more of "b.weight" and nothing of "a"."""
    folder = tmp_path_factory.mktemp("run")
    base, paths = weights((128, 96)), []
    for i, step in enumerate((0, 10, 20, 30)):
        changed = base.copy()
        changed[: 32 * i] *= 2
        arrays = {"a.weight": base, "b.weight": changed}
        paths.append(write_safetensors(folder / f"m-step{step}.safetensors", arrays))
    safetensors_to_run(paths, folder / "run.zarr")
    return folder / "run.zarr"


@pytest.fixture
def louder(tmp_path):
    """Return checkpoints of one tensor that gets larger from step to step: 1, 2 and 3."""
    values = weights((64, 64))
    return [
        write_safetensors(tmp_path / f"m-step{step}.safetensors", {"w": values * step})
        for step in (1, 2, 3)
    ]


def test_steps(look_at, run):
    looking = look_at(run)
    assert looking.text("#step-label") == "30"
    looking.page.focus("#step")
    looking.key("ArrowLeft")
    assert looking.text("#step-label") == "20"
    assert looking.query["step"] == "20"
    looking.choose("#against", "/before")
    assert looking.query["against"] == "/before"
    assert "Compared with 10" in looking.text("#note")
    titles = looking.page.eval_on_selector_all(
        ".treemap [data-tensor]", "all => all.map(own => own.textContent)"
    )
    assert any("b.weight" in own and "changed: 25.0 %" in own for own in titles)
    assert any("a.weight" in own and "changed: 0.0 %" in own for own in titles)
    looking.click('.treemap [data-tensor="b.weight"]')
    assert looking.shown().startswith("difference 0:128")
    looking.choose("#show", "changed")
    assert looking.shown().startswith("changed")
    assert looking.colours() == 2
    assert "25.0 % of the values differ" in looking.text("#changes")
    looking.screenshot()
    # Another step keeps the old picture until its own has arrived.
    looking.page.eval_on_selector("main", "main => { main.scrollTop = main.scrollHeight; }")
    looking.click('.dot[data-step="10"]')
    assert looking.text("#step-label") == "10"
    assert looking.page.eval_on_selector("main", "main => main.scrollTop") > 100
    looking.page.focus("#step")
    looking.key("]", "]")
    assert looking.text("#step-label") == "30"
    assert looking.shown().startswith("changed")


def test_colours_stay_from_step_to_step(look_at, louder):
    looking = look_at(*louder, query="?tensor=w&step=1")
    legend = looking.text(".legend").split("\n")
    looking.key("]", "]")
    assert looking.text("#step-label") == "3"
    assert looking.text(".legend").split("\n")[0] == legend[0]
    assert "largest" in looking.text(".legend")
    looking.key("c")
    assert looking.text(".legend").split("\n")[0] != legend[0]


def test_colours_stay_where_one_is_passed_before_it_is_known(look_at, louder):
    looking = look_at(*louder, query="?tensor=w&step=1")
    legend = looking.text(".legend").split("\n")
    unanswered = "**/api/tensor?step=2*"
    looking.page.route(unanswered, lambda route: None)
    with looking.page.expect_request(unanswered):
        looking.page.keyboard.press("]")
    looking.key("]")
    assert looking.text("#step-label") == "3"
    assert looking.text(".legend").split("\n")[0] == legend[0]
    assert "largest" in looking.text(".legend")


def test_differences_have_numbers(look_at, tmp_path):
    old, new = weights((8, 8)), weights((8, 8), seed=1)
    write_safetensors(tmp_path / "a.safetensors", {"w": old})
    write_safetensors(tmp_path / "b.safetensors", {"w": new})
    looking = look_at(
        tmp_path / "b.safetensors", base=tmp_path / "a.safetensors", query="?tensor=w"
    )
    looking.page.focus(CELLS)
    looking.key("ArrowDown")
    bits = [own.view(np.uint16)[4, 4] for own in (new, old)]
    moved = float(new[4, 4]) - float(old[4, 4])
    told = f"[4, 4] = {moved!r} (bits {bits[0]:04x} was {bits[1]:04x})"
    assert looking.text("#readout") == told


def test_nothing_is_compared_if_that_is_wanted(look_at, tmp_path):
    for seed, name in enumerate(("a", "b", "c")):
        (tmp_path / name).mkdir()
        write_safetensors(tmp_path / name / "m.safetensors", {"w": weights((32, 32), seed=seed)})
    first, second, base = (tmp_path / name / "m.safetensors" for name in "abc")
    looking = look_at(first, second, base=base, query="?tensor=w")
    assert looking.page.input_value("#against") == "base m.safetensors"
    assert looking.shown().startswith("difference")
    looking.choose("#against", "/nothing")
    assert looking.shown().startswith("value")
    looking.page.reload()
    looking.settle()
    assert looking.page.input_value("#against") == "/nothing"
    assert looking.shown().startswith("value")
    looking.choose("#against", "/before")
    assert looking.shown().startswith("difference")


def test_switching_quickly_between_tensors(look_at, run):
    looking = look_at(run)
    looking.requests.clear()
    for name in "ababab":
        looking.page.click(f'#tree [data-tensor="{name}.weight"] .row')
    looking.settle()
    assert looking.text("h1") == "b.weight"
    assert "Exponents" in looking.text("#panels")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280, 2800])
def test_light_and_dark_and_narrow(look_at, run, scheme, width):
    looking = look_at(run, query="?tensor=b.weight&against=0")
    looking.page.emulate_media(color_scheme=scheme)
    looking.page.set_viewport_size({"width": width, "height": 800})
    looking.settle()
    assert looking.page.evaluate("() => document.documentElement.scrollWidth") <= width
    back = looking.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")
    assert looking.shown() == "difference 0:128 0:96"
    assert not looking.page.is_visible("#damage")
    looking.screenshot()
