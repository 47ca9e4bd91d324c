"""Analyses: supported models, figures, and refused input."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import bf16codecs
import tiers
from based_models import write_steps
from bf16codecs.analysis import KINDS, analyze, kind_of, tables
from bf16codecs.analysis.analyzer import Analyzer, TensorChanges
from bf16codecs.analysis.pieces import Tensor
from bf16codecs.bench.synthetic import RECIPES
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_run, safetensors_to_zarr
from bf16codecs.errors import CorruptDataError, LimitError, StoreError
from lazy_models import weights, write_safetensors, write_store
from looping import for_each


@pytest.fixture(scope="module")
def of_demo(demo_model):
    """Return the analysis of the demo's model."""
    return analyze(demo_model)


def figures(found):
    """Return the figures that must not depend on how a model is stored."""
    return json.loads(json.dumps({**found.to_json(), "path": "", "base": ""}))


def test_every_kind_of_store_is_the_same(tmp_path, demo_model):
    small = {"layers.0.up": weights((300, 200)), "layers.0.norm": weights((200,), "float32", 1)}
    source = demo_model if tiers.IS_FULL else write_safetensors(tmp_path / "m.safetensors", small)
    expected = figures(analyze(source))
    endings = {"zip": ".zarr.zip", "hdf5": ".h5"}
    for kind in ("zarr", "zarr 2", "zip", "hdf5", "split", "none", "steps", "based"):
        path = tmp_path / f"{kind}{endings.get(kind, '.zarr')}"
        if kind == "hdf5":
            safetensors_to_hdf5(source, path)
        elif kind == "steps":
            safetensors_to_run([source], path, steps=[7])
            path = f"{path}@7"
        elif kind == "based":
            safetensors_to_zarr(source, path, base=source)
        else:
            codec = kind if kind in ("split", "none") else "arithmetic"
            safetensors_to_zarr(source, path, codec=codec, zarr_format=2 if "2" in kind else 3)
        assert figures(analyze(path)) == expected, kind


def test_open_models_are_taken_and_stay_open(demo_model):
    with bf16codecs.open_model(demo_model) as model:
        found = analyze(model, base=model)
        assert found.model.statistics.change.changed == 0
        assert found.path == found.base == str(demo_model)
        assert model["model.norm.weight"][0] != 0


def test_threads_change_nothing(demo_model, of_demo):
    assert analyze(demo_model, threads=1) == analyze(demo_model, threads=5) == of_demo


def test_series(tmp_path, demo_model):
    steps = write_steps(tmp_path, demo_model)
    found = analyze(list(steps.values()))
    assert [step.step for step in found.steps] == ["300", "399", "400"]
    assert found.steps[0].model.statistics.change is None
    late, last = (step.model for step in found.steps[1:])
    assert last.statistics.change.xor < late.statistics.change.xor
    assert last.bits["difference, arithmetic"] < late.bits["difference, arithmetic"] < 10
    assert found.model == last
    assert found.path == str(steps[400])
    assert found.base == str(steps[399])
    pair = analyze(steps[400], steps[399])
    assert (pair.model, pair.tensors, pair.steps) == (last, found.tensors, [])
    run = tmp_path / "run.zarr"
    safetensors_to_run(list(steps.values()), run)
    whole = analyze(run)
    assert whole.steps == found.steps
    assert whole.tensors == found.tensors
    with bf16codecs.open_run(run) as opened:
        assert analyze(opened).steps == found.steps
    one_by_one = analyze([f"{run}@{number}" for number in steps])
    assert [step.step for step in one_by_one.steps] == ["300", "399", "400"]
    with pytest.raises(ValueError, match=r"a run, with steps 300, 399, 400: name .*run.zarr@400"):
        analyze(steps[400], run)


def test_kinds():
    names = {
        "model.layers.3.self_attn.q_proj.weight": "attention",
        "model.layers.3.mlp.gate_proj.weight": "mlp",
        "model.layers.3.input_layernorm.weight": "norm",
        "model.layers.3.self_attn.q_norm.weight": "norm",
        "model.embed_tokens.weight": "embedding",
        "lm_head.weight": "embedding",
        "h.0.attn.c_attn.bias": "attention",
        "h.0.ln_1.weight": "norm",
        "wte.weight": "embedding",
        "encoder.layer.0.attention.self.query.weight": "attention",
        "encoder.layer.0.intermediate.dense.weight": "mlp",
        "layers.0.feed_forward.w1.weight": "mlp",
        "backbone.conv1.weight": "other",
    }
    assert {name: kind_of(name) for name in names} == names
    assert set(names.values()) == {*KINDS, "other"}


def test_other_kinds(demo_model):
    found = analyze(demo_model, kinds={"layers": r"layers\.\d"})
    assert {group.kind for group in found.kinds} == {"layers", "other"}
    found = analyze(demo_model, kinds=lambda name: name.rsplit(".", 1)[-1])
    assert {group.kind for group in found.kinds} == {"weight"}
    with pytest.raises(ValueError, match=r"the rule of kind 'x' is not a regular expression: '\('"):
        analyze(demo_model, kinds={"x": "("})


def test_kinds_and_dtypes_are_all_tensors(tmp_path, of_demo):
    found = of_demo
    (whole,) = found.dtypes
    assert whole == found.model
    assert sum(group.statistics.values for group in found.kinds) == whole.statistics.values
    assert sum(group.tensors for group in found.kinds) == len(found.tensors)
    by_kind = Counter(tensor.kind for tensor in found.tensors)
    assert {group.kind: group.tensors for group in found.kinds} == by_kind
    mixed = {"a": weights((9, 9)), "b": weights((90, 90), "float32"), "c": np.arange(10**4)}
    found = analyze(write_safetensors(tmp_path / "m.safetensors", mixed))
    assert {group.statistics.dtype for group in found.dtypes} == {"BF16", "F32", "I64"}
    assert found.model.statistics.dtype == "F32", "the most bytes of floating-point numbers"


def test_a_table(of_demo):
    found = of_demo
    table = found.table()
    assert {len(column) for column in table.values()} == {len(found.tensors)}
    assert table["name"] == [tensor.name for tensor in found.tensors]
    assert table["arithmetic_best"][0] == found.tensors[0].bits["arithmetic best"]


def test_samples(tmp_path, demo_model, of_demo):
    whole, sample = of_demo, analyze(demo_model, sample=300_000)
    assert 0.2 < sample.share < 0.6, "16 KiB of each tensor, in whole rows"
    assert whole.share == 1
    assert [t.name for t in sample.tensors] == [t.name for t in whole.tensors]
    for name in ("exponent", "sign_and_mantissa"):
        near = getattr(whole.model.statistics.entropies, name)
        assert getattr(sample.model.statistics.entropies, name) == pytest.approx(near, abs=0.05)
    assert analyze(demo_model, sample=10**9) == whole
    wide = write_safetensors(tmp_path / "m.safetensors", {"w": weights((3, 3 << 20))})
    found = analyze(wide, sample=1 << 20)
    assert found.share == pytest.approx(1 / 18, rel=0.1)
    assert found.tensors[0].scales.columns.count > 1000
    for sample in (0, -5):
        with pytest.raises(ValueError, match="sample must be at least 1 byte"):
            analyze(demo_model, sample=sample)
    with pytest.raises(TypeError, match="sample must be an integer"):
        analyze(demo_model, sample=1.5)


@for_each("columns", tiers.by_tier([1024, 16 << 20], [1024, 1 << 20, 3 << 19, 16 << 20]))
def test_samples_are_spread(tmp_path, columns):
    """If the middle half of a tensor changed, so did half of a sample."""
    base = np.ones((2 * (16 << 20) // columns // 2, columns), "bfloat16")
    array = base.reshape(-1).copy()
    array[array.size // 4 : -array.size // 4] = 2
    (tmp_path / "base").mkdir(exist_ok=True)
    other = write_safetensors(tmp_path / "base" / "m.safetensors", {"w": base})
    model = write_safetensors(tmp_path / "m.safetensors", {"w": array.reshape(base.shape)})
    for sample in tiers.by_tier([1 << 20], [1 << 18, 1 << 20, 8 << 20]):
        found = analyze(model, other, sample=sample)
        assert found.model.statistics.change.changed == pytest.approx(0.5, abs=0.01), sample
        assert found.share == pytest.approx(sample / array.nbytes, rel=0.01), sample


@for_each("shape", [(999, 33), (33, 99_999), (3, 1_500_000), (5_000_000,), (9,)])
@for_each("share", [1e-9, 0.01, 0.3, 0.97])
def test_parts_of_samples(tmp_path, shape, share):
    """They are inside, apart from each other, and of rows, or of parts of one."""
    path = write_safetensors(tmp_path / "m.safetensors", {"w": np.zeros(shape, "bfloat16")})
    with bf16codecs.open_model(path) as model:
        tensor = Tensor.of(model["w"])
    pieces, row = list(tensor.pieces(share)), 2 * shape[-1]
    assert len(pieces) <= 16
    ends = [0, *(end for piece in pieces for end in (piece.start, piece.stop)), tensor.nbytes]
    assert ends == sorted(ends)
    for piece in pieces:
        assert piece.nbytes > 0
        is_rows = piece.start % row == piece.stop % row == 0
        assert is_rows or piece.start // row == (piece.stop - 1) // row
    wanted = min(tensor.nbytes, max(1 << 14, share * tensor.nbytes))
    assert 0.5 * wanted < sum(piece.nbytes for piece in pieces) < 2 * wanted


@for_each(
    "shape", [(11008, 4096), (4096, 11008), (8, 2048, 1408), (3, 5_000_000), (5_000_000,), ()]
)
@for_each("share", [0.001, 0.1, 0.5, 1])
def test_pieces_begin_where_tiles_and_groups_do(shape, share):
    tensor = Tensor("w", "BF16", shape, np.dtype("f2"), None)
    pieces = list(tensor.pieces(share))
    assert [piece.is_first for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    for piece in pieces:
        row, column = divmod(piece.start // 2, tensor.columns)
        assert column % 256 == 0
        assert row % 128 == 0 or piece.nbytes < 128 * tensor.row_nbytes


def write_quantised(path, recipes, shape, flat=False):
    """Write a tensor of each recipe, and return the file's path."""
    normal = np.random.default_rng(0).normal(0, 0.02, shape).astype("f4")
    tensors = {recipe: RECIPES[recipe](normal).astype("bfloat16") for recipe in recipes}
    if flat:
        tensors = {recipe: values.reshape(-1) for recipe, values in tensors.items()}
    return write_safetensors(path / "m.safetensors", tensors)


def test_samples_tell_grids_as_the_whole_does(tmp_path):
    recipes = ["fp8-tiles", "fp8-rows", "int4-g128", "int6-g16", "nf4", "gaussian"]
    for shape, flat in [((1280, 1024), False), ((1280, 1024), True), ((4, 1 << 18), False)]:
        if shape[0] < 128 or flat:
            recipes = [recipe for recipe in recipes if recipe.startswith(("int", "nf4"))]
        path = write_quantised(tmp_path, recipes, shape, flat)
        whole = {tensor.name: tensor.grid for tensor in analyze(path).tensors}
        assert None not in {**whole, "gaussian": ""}.values()
        for sample in (200_000, 1_000_000):
            found = analyze(path, sample=sample)
            assert {tensor.name: tensor.grid for tensor in found.tensors} == whole, (shape, sample)


def test_kernels_of_convolutions_have_rows(tmp_path):
    normal = np.random.default_rng(0).normal(0, 0.02, (64, 576)).astype("f4")
    kernels = RECIPES["int8-rows"](normal).astype("bfloat16").reshape(64, 64, 3, 3)
    path = write_safetensors(tmp_path / "m.safetensors", {"w": kernels})
    (tensor,) = analyze(path).tensors
    assert tensor.grid == "INT8, rows"


def test_samples_see_columns(tmp_path):
    path = write_quantised(tmp_path, ["int8-columns"], (4096, 1024))
    (tensor,) = analyze(path, sample=1 << 20).tensors
    assert tensor.grid.startswith("INT8, ")
    assert tensor.grid.endswith("columns")


def test_damage_where_further_rows_are_read_to_tell_a_grid(tmp_path):
    """The name that the first piece gives it remains, without an error."""
    source = write_quantised(tmp_path, ["fp8-tiles"], (1280, 1024))
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(source, store, chunk_size=64 * 2048)
    piece, *_ = Tensor("w", "BF16", (1280, 1024), np.dtype("f2"), None).pieces(0.05)
    chunks = sorted((store / "fp8-tiles").glob("c.*.0"), key=lambda path: int(path.suffixes[0][1:]))
    chunks[piece.start // (64 * 2048) + 1].write_bytes(b"damage")
    found = analyze(store, sample=int(0.05 * 1280 * 2048))
    assert found.damage == ()
    assert found.tensors[0].grid == "FP8 E4M3, groups of 128"


def test_progress(demo_model, of_demo):
    told = []
    analyze(demo_model, progress=lambda *about: told.append(about))
    size = sum(t.statistics.nbytes for t in of_demo.tensors)
    assert {name for name, _, _ in told} == {"demo.safetensors"}
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1][1:] == (size, size)


def strange_tensors():
    return {
        "one value": np.array([1.5], "float32"),
        "a scalar": np.array(2.0, "bfloat16"),
        "NaN alone": np.full((100, 100), np.nan, "bfloat16"),
        "zeros": np.zeros((100, 100), "bfloat16"),
        "no columns": np.zeros((1000, 1), "bfloat16"),
        "infinities": np.full((10, 10), -np.inf, "float16"),
        "bytes": np.arange(1000, dtype="uint8"),
        "truth": np.array([True, False] * 50),
        "complex": np.ones((10, 10), "complex64"),
    }.items()


@for_each("name, array", strange_tensors)
def test_strange_tensors(tmp_path, name, array):
    path = write_safetensors(tmp_path / "m.safetensors", {"w": array, "empty": array.ravel()[:0]})
    found = analyze(path, path)
    assert found.model.statistics.values == array.size
    assert found.model.statistics.change.changed == 0
    assert all(np.isfinite(bits) for bits in found.model.bits.values())
    json.dumps(found.to_json(), allow_nan=False)
    empty = next(tensor for tensor in found.tensors if tensor.name == "empty")
    assert empty.statistics.values == 0
    assert len(found.table()["name"]) == 2


@for_each("arrays", lambda: [{}, {"w": np.zeros((0, 5), "float32")}])
def test_models_without_values(tmp_path, arrays):
    path = write_safetensors(tmp_path / "m.safetensors", arrays)
    with pytest.raises(ValueError, match=r"m.safetensors: has no values"):
        analyze(path)


def test_a_damaged_chunk(tmp_path):
    arrays = {"a": weights((600, 600)), "b": weights((600, 600), seed=1)}
    store = write_store(tmp_path / "m.zarr", arrays, chunk_size=1 << 18)
    sound = analyze(store)
    chunk = store / "a" / "c.1.0"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 0xFF
    chunk.write_bytes(content)
    found = analyze(store)
    (damage,) = found.damage
    assert damage.tensor == "a"
    assert "tensor 'a', chunk" in damage.message
    assert str(store) not in damage.message
    a, b = found.tensors
    assert b == sound.tensors[1]
    assert 200_000 < a.statistics.values < 360_000 - 100_000, "two chunks of three"
    assert found.share < 1
    for path in (store / "a").glob("c.*"):
        path.write_bytes(bytes(content))
    shutil.rmtree(store / "b")
    with pytest.raises(CorruptDataError, match="tensor 'a', chunk"):
        analyze(store)


def test_a_look_at_few_codecs(tmp_path, demo_model):
    steps = write_steps(tmp_path, demo_model)
    whole = analyze(steps[400], steps[399])
    analyzer = Analyzer(kind_of, codecs=("arithmetic",))
    with bf16codecs.open_model(steps[400]) as model, bf16codecs.open_model(steps[399]) as base:
        found, changes = analyzer.model(model, base, None), analyzer.changes(model, base)
    wanted = ("arithmetic", "difference, arithmetic")
    assert found.model.bits == {name: whole.model.bits[name] for name in wanted}
    assert changes.share == 1
    assert changes.tensors == {
        own.name: TensorChanges(own.statistics.change.changed, {wanted[1]: own.bits[wanted[1]]})
        for own in whole.tensors
    }


def test_what_is_below_damage_is_counted(tmp_path):
    """Rows right below a damaged chunk count, though their upper neighbours are unknown."""
    store = write_store(tmp_path / "m.zarr", {"w": weights((256, 256))}, chunk_size=1 << 16)
    chunk = store / "w" / "c.0.0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    found = analyze(store)
    assert found.model.statistics.values == 128 * 256
    assert len(found.damage) == 1


def test_looks_keep_no_damage(tmp_path):
    """Each analysis reports its own damage, and the next begins anew."""
    sound = write_store(tmp_path / "m.zarr", {"a": weights((600, 600))}, chunk_size=1 << 18)
    chunk = shutil.copytree(sound, tmp_path / "bad.zarr") / "a" / "c.1.0"
    chunk.write_bytes(b"?" * chunk.stat().st_size)
    analyzer = Analyzer(kind_of)
    with bf16codecs.open_model(sound) as model, bf16codecs.open_model(chunk.parents[1]) as bad:
        for found in (
            analyzer.changes(bad, model),
            analyzer.changes(model, bad),
            analyzer.model(bad, None, None),
        ):
            (damage,) = found.damage
            assert "tensor 'a'" in damage.message
        changes = analyzer.changes(bad, model)
        assert changes.tensors["a"].changed == 0
        assert 0.6 < changes.share < 0.7, "two chunks of three"
        _, (damage,) = analyzer.tensor(bad["a"])
        assert damage.tensor == "a"
        assert analyzer.tensor(model["a"])[1] == analyzer.model(model, None, None).damage == ()


def test_paths_that_are_no_models(tmp_path, demo_model):
    with pytest.raises(FileNotFoundError):
        analyze(tmp_path / "missing")
    with pytest.raises(StoreError, match="not a model store"):
        analyze(tmp_path)
    with pytest.raises(ValueError, match="src is empty"):
        analyze([])
    with pytest.raises(FileNotFoundError):
        analyze(demo_model, tmp_path / "missing")
    store = write_store(tmp_path / "m.zarr", {"a": weights((600, 600))})
    with pytest.raises(LimitError):
        analyze(store, max_bytes=1000)


def test_a_base_of_another_shape(tmp_path, demo_model):
    path = write_safetensors(tmp_path / "m.safetensors", {"w": weights((9, 9))})
    with pytest.raises(ValueError, match=r"has no tensor with the name, dtype and shape of one of"):
        analyze(path, demo_model)


def test_a_base_of_another_dtype(tmp_path):
    """FP32 is rounded, so that BF16 can be compared with it."""
    array = weights((64, 64), "float32")
    (tmp_path / "base").mkdir()
    base = write_safetensors(tmp_path / "base" / "m.safetensors", {"w": array})
    path = write_safetensors(tmp_path / "m.safetensors", {"w": array.astype("bfloat16")})
    assert analyze(path, base).model.statistics.change.changed == 0


def test_weights_that_were_quantised_once_are_told(tmp_path):
    normal = np.random.default_rng(0).normal(0, 0.02, (256, 512)).astype("f4")
    tensors = {
        name: RECIPES[name](normal).astype(ml_dtypes.bfloat16) for name in ("nf4", "gaussian")
    }
    save_file(tensors, tmp_path / "model.safetensors")
    found = analyze(tmp_path / "model.safetensors")
    assert {tensor.name: tensor.grid for tensor in found.tensors} == {
        "nf4": "NF4, groups of 64",
        "gaussian": None,
    }
    assert found.table()["grid"] == [tensor.grid for tensor in found.tensors]
    assert next(tables.reasons(found.tensors[1])).endswith(
        "multiplied out again: NF4, groups of 64."
    )
    assert "quantised once: NF4, groups of 64 (1 of 2 tensors)" in tables.summary(found)
