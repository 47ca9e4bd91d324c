"""Models of transformers from stores have the bits that transformers itself loads."""

from __future__ import annotations

import json
import shutil

import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr
from bf16codecs.errors import BF16CodecsError, StoreError
from lazy_imports import lazily
from tiny_llama import packed, same, saved, tiny_config, tiny_llama

torch = lazily("torch")
hf = lazily("transformers")
bf16torch = lazily("bf16codecs.torch")
patching = lazily("bf16codecs.torch.patching")

pytestmark = pytest.mark.usefixtures("needs_transformers", "no_network")


# --- folders --------------------------------------------------------------------------------------


def test_classes(native, folder):
    for name in ("AutoModelForCausalLM", "AutoModel", "LlamaForCausalLM", "LlamaModel"):
        cls = getattr(hf, name)
        ours, theirs = bf16torch.from_pretrained(cls, folder), cls.from_pretrained(native)
        assert same(ours, theirs), name
        assert ours.dtype == torch.bfloat16, name
        assert ours.config.name_or_path == str(folder), name
        assert not ours.training, name


def test_options(native, folder):
    for options in (
        {"dtype": "auto"},
        {"dtype": torch.float32},
        {"dtype": "float16"},
        {"torch_dtype": torch.float64},
        {"attn_implementation": "eager"},
        {"use_safetensors": True},
    ):
        ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder, **options)
        assert same(ours, hf.AutoModelForCausalLM.from_pretrained(native, **options)), options


@pytest.mark.usefixtures("needs_accelerate")
@pytest.mark.parametrize("device_map", ["cpu", "auto"])
def test_device_maps(native, folder, device_map):
    ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder, device_map=device_map)
    assert same(ours, hf.AutoModelForCausalLM.from_pretrained(native, device_map=device_map))


def test_dtypes_without_a_configuration(tmp_path):
    """They are the weights' dtypes, which are found without reading the weights."""
    native = saved(tmp_path / "native")
    config = json.loads((native / "config.json").read_text())
    del config["dtype"]
    (native / "config.json").write_text(json.dumps(config))
    packed(native, tmp_path / "packed")
    ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "packed")
    assert ours.dtype == torch.bfloat16
    assert same(ours, hf.AutoModelForCausalLM.from_pretrained(native))


def test_generation_configuration(native, folder):
    ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder).generation_config
    theirs = hf.AutoModelForCausalLM.from_pretrained(native).generation_config
    assert ours.max_new_tokens == theirs.max_new_tokens == 17
    assert ours.to_dict() == theirs.to_dict()


@pytest.mark.parametrize("tie", [True, False])
def test_tied_weights_and_shards(tmp_path, tie):
    model = tiny_llama(tie_word_embeddings=tie)
    native = saved(tmp_path / "native", model, max_shard_size="30KB")
    assert len(list(native.glob("*.safetensors"))) > 2
    packed(native, tmp_path / "packed")
    assert [path.name for path in (tmp_path / "packed").glob("*.zarr")] == ["model.zarr"]
    ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "packed")
    assert same(ours, model)
    assert (ours.lm_head.weight is ours.model.embed_tokens.weight) is tie


def test_variants_and_subfolders(tmp_path):
    for name in ("", "inner"):
        saved(tmp_path / "native" / name, tiny_llama(tie_word_embeddings=name == ""))
    halved = tiny_llama(tie_word_embeddings=False).to(torch.float16)
    halved.save_pretrained(tmp_path / "native" / "inner", variant="fp16")
    packed(tmp_path / "native", tmp_path / "packed")
    for options in ({}, {"subfolder": "inner"}, {"subfolder": "inner", "variant": "fp16"}):
        ours = bf16torch.from_pretrained(hf.LlamaForCausalLM, tmp_path / "packed", **options)
        assert same(ours, hf.LlamaForCausalLM.from_pretrained(tmp_path / "native", **options))


def test_missing_and_unexpected_tensors_are_reported(tmp_path):
    tensors = {n: t.clone() for n, t in tiny_llama(tie_word_embeddings=False).state_dict().items()}
    del tensors["model.norm.weight"]
    tensors["other.weight"] = torch.ones(3)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].float()  # another dtype
    tiny_config(tie_word_embeddings=False).save_pretrained(tmp_path)
    bf16torch.save_file(tensors, tmp_path / "model.zarr")
    model, told = bf16torch.from_pretrained(
        hf.AutoModelForCausalLM, tmp_path, output_loading_info=True
    )
    assert set(told["missing_keys"]) == {"model.norm.weight"}
    assert set(told["unexpected_keys"]) == {"other.weight"}
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert torch.equal(model.lm_head.weight, tensors["lm_head.weight"].bfloat16())
    tensors["model.norm.weight"] = torch.ones(3)
    bf16torch.save_file(tensors, tmp_path / "model.zarr")
    with pytest.raises(RuntimeError, match=r"mismatch|size"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path)


def test_offload_to_disk(native, folder, tmp_path):
    pytest.importorskip("accelerate")
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
    places |= {"model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    tokens = torch.tensor([[1, 5, 9]])
    found = []
    for name, load in (
        (
            "ours",
            lambda **o: bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder, **o),
        ),
        ("theirs", lambda **o: hf.AutoModelForCausalLM.from_pretrained(native, **o)),
    ):
        model = load(device_map=places, offload_folder=tmp_path / name)
        found.append(model(tokens).logits)
    assert torch.equal(*found)


# --- stores by themselves -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.zarr", "other.zarr.zip", "model.h5", "plain"])
def test_stores_beside_a_configuration(native, tmp_path, name):
    convert = safetensors_to_hdf5 if name.endswith(".h5") else safetensors_to_zarr
    convert(native, tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"No config\.json in it or beside it"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / name)
    theirs = hf.AutoModelForCausalLM.from_pretrained(native)
    for config in (
        native,
        str(native / "config.json"),
        hf.AutoConfig.from_pretrained(native),
    ):
        ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / name, config=config)
        assert same(ours, theirs)
    shutil.copy(native / "config.json", tmp_path)
    assert same(bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / name), theirs)


def test_configuration_in_a_store(native, tmp_path):
    safetensors_to_zarr(native, tmp_path / "m.zarr")
    shutil.copy(native / "config.json", tmp_path / "m.zarr")
    shutil.copy(native / "generation_config.json", tmp_path / "m.zarr")
    ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "m.zarr")
    assert same(ours, hf.AutoModelForCausalLM.from_pretrained(native))
    assert ours.generation_config.max_new_tokens == 17


def test_steps_of_runs(native, tmp_path):
    bf16codecs.convert.append_to_run(native, tmp_path / "run.zarr", 600)
    path = f"{tmp_path / 'run.zarr'}@600"
    ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, path, config=native)
    assert same(ours, hf.AutoModelForCausalLM.from_pretrained(native))
    with pytest.raises(KeyError, match="700"):
        bf16torch.from_pretrained(
            hf.AutoModelForCausalLM, path.replace("600", "700"), config=native
        )


def test_bases_and_limits(native, tmp_path):
    safetensors_to_zarr(native, tmp_path / "base.zarr")
    other = tiny_llama()
    with torch.no_grad():
        other.model.norm.weight.add_(1)
    saved(tmp_path / "other", other)
    safetensors_to_zarr(tmp_path / "other", tmp_path / "fine.zarr", base=tmp_path / "base.zarr")
    (tmp_path / "base.zarr").rename(tmp_path / "moved.zarr")
    options = {"config": native, "base": tmp_path / "moved.zarr"}
    ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "fine.zarr", **options)
    assert same(ours, other)
    with pytest.raises(StoreError, match="base"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "fine.zarr", config=native)
    with pytest.raises(StoreError, match="max_bytes"):
        bf16torch.from_pretrained(
            hf.AutoModelForCausalLM, tmp_path / "moved.zarr", config=native, max_bytes=9
        )


def test_addresses(native, tmp_path):
    pytest.importorskip("fsspec")
    safetensors_to_zarr(native, tmp_path / "m.zarr")
    import fsspec

    fsspec.filesystem("memory").put(str(tmp_path / "m.zarr"), "/hf/m.zarr", recursive=True)
    with pytest.raises(ValueError, match="give config="):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, "memory://hf/m.zarr")
    ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, "memory://hf/m.zarr", config=native)
    assert same(ours, hf.AutoModelForCausalLM.from_pretrained(native))


def test_safetensors_by_themselves(native, tmp_path):
    """From an address or a path, safetensors are read by this package, under any name."""
    pytest.importorskip("fsspec")
    import fsspec

    theirs = hf.AutoModelForCausalLM.from_pretrained(native)
    file = native / "model.safetensors"
    fsspec.filesystem("memory").put(str(file), "/hf/model.safetensors")
    for place, options in (
        (file, {}),
        (file, {"device_map": "cpu", "dtype": "auto"}),
        ("memory://hf/model.safetensors", {"config": native}),
    ):
        assert same(bf16torch.from_pretrained(hf.AutoModelForCausalLM, place, **options), theirs)
    shutil.copy(file, tmp_path / "weights.gguf")
    place = tmp_path / "weights.gguf"
    assert same(bf16torch.from_pretrained(hf.AutoModelForCausalLM, place, config=native), theirs)


# --- refused --------------------------------------------------------------------------------------


def test_wrong_paths(native, folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such folder or store: .*typo"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "typo")
    with pytest.raises(FileNotFoundError, match=r"meta-llama/Llama-3\.2-1B"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, "meta-llama/Llama-3.2-1B")
    with pytest.raises(FileNotFoundError, match=r"No config\.json there: .*typo"):
        bf16torch.from_pretrained(hf.AutoModel, folder / "model.zarr", config=tmp_path / "typo")
    with pytest.raises(StoreError, match=r"neither model\.zarr nor model\.zarr\.zip nor model\.h5"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, native)
    with pytest.raises(StoreError, match=r"neither model\.fp16\.zarr"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder, variant="fp16")
    shutil.copytree(folder / "model.zarr", tmp_path / "bare" / "model.zarr")
    with pytest.raises(FileNotFoundError, match=r"No config\.json in it: give config=: '.*bare'"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "bare")
    for name in ("state_dict", "gguf_file"):
        with pytest.raises(TypeError, match="takes neither state_dict nor gguf_file"):
            bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder, **{name: {}})


def test_what_else_is_there_is_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "packed")
    (tmp_path / "packed" / "model.zarr").rename(tmp_path / "packed" / "model.fp16.zarr")
    told = r"neither model\.zarr .*; there is model\.fp16\.zarr \(variant='fp16'\) \("
    with pytest.raises(StoreError, match=told):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "packed")
    bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "packed", variant="fp16")
    with pytest.raises(StoreError, match=r"; there is model\.zarr \(variant=None\) \("):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder, variant="fp16")
    (tmp_path / "packed" / "model.fp16.zarr").rename(tmp_path / "packed" / "best.zarr")
    with pytest.raises(StoreError, match=r"; there is best\.zarr \(bf16"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "packed")


def test_weights_in_another_format(tmp_path):
    """They are copied, and `use_safetensors=False` loads them from both folders."""
    native, other = saved(tmp_path / "native"), tiny_llama()
    with torch.no_grad():
        other.model.norm.weight.fill_(7)
    torch.save(other.state_dict(), native / "pytorch_model.bin")
    there = packed(native, tmp_path / "packed")
    options = {"use_safetensors": False}
    for config in (None, tiny_config()):
        own = {} if config is None else {"config": config}
        theirs = hf.AutoModelForCausalLM.from_pretrained(native, **own, **options)
        ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, there, config=config, **options)
        assert same(ours, theirs)
        assert same(ours, other)
    assert same(bf16torch.from_pretrained(hf.AutoModelForCausalLM, there), tiny_llama())
    (there / "pytorch_model.bin").unlink()
    with pytest.raises(OSError, match=r"no file named .*pytorch_model\.bin"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, there, **options)


def test_wrong_arguments(folder, tmp_path):
    for cls in (3, "LlamaModel", object):
        with pytest.raises(TypeError, match="cls must be a class with from_pretrained"):
            bf16torch.from_pretrained(cls, folder)
    with pytest.raises(TypeError, match=r"config must be a folder or .*, not 3 \(int\)"):
        bf16torch.from_pretrained(hf.AutoModel, folder, config=3)
    shutil.copytree(folder, tmp_path / "elsewhere", ignore=lambda *_: ["model.zarr"])
    for place, config in ((folder / "model.zarr", None), (folder, tmp_path / "elsewhere")):
        with pytest.raises(ValueError, match="use_safetensors=False: the weights are in the store"):
            bf16torch.from_pretrained(hf.AutoModel, place, config=config, use_safetensors=False)
    with pytest.raises(FileNotFoundError, match=r"No config\.json there: .*[/\\]x'"):
        bf16torch.from_pretrained(hf.AutoModel, folder / "model.zarr", config=folder, subfolder="x")


def test_damaged_stores(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "packed")
    array = tmp_path / "packed" / "model.zarr" / "lm_head" / "weight"
    chunk = max(array.rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(
        (BF16CodecsError, RuntimeError), match=r"model\.zarr|corrupt|checksum|damaged"
    ):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "packed")


def test_nothing_is_left_behind(folder, tmp_path):
    before = [patch.current for patch in patching.PATCHES]
    bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder)
    with pytest.raises(StoreError):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder, variant="x")
    assert [patch.current for patch in patching.PATCHES] == before
    with pytest.raises(OSError, match=r"model\.safetensors"):
        hf.AutoModelForCausalLM.from_pretrained(folder)
