"""`patch_transformers`: unchanged code loads folders with stores; the rest is unaffected."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import threading

import pytest

from bf16codecs.errors import StoreError
from lazy_imports import lazily
from tiny_llama import bits_of, packed, same, saved, tiny_config, tiny_llama

torch = lazily("torch")
hf = lazily("transformers")
modeling = lazily("transformers.modeling_utils")
bf16torch = lazily("bf16codecs.torch")
patching = lazily("bf16codecs.torch.patching")
stored_files = lazily("bf16codecs.torch.stored_files")

pytestmark = pytest.mark.usefixtures("needs_transformers", "no_network")


@pytest.fixture
def patch():
    bf16torch.patch_transformers()
    yield
    bf16torch.unpatch_transformers()


def patches():
    """Return the patches of functions that this release of transformers has."""
    return [patch for patch in patching.PATCHES if patch.current is not None]


def functions():
    return [patch.current for patch in patches()]


def test_unchanged_code_loads_packed_folders(native, folder, patch):
    bf16torch.patch_transformers()  # once more changes nothing
    theirs = hf.AutoModelForCausalLM.from_pretrained(native)
    assert same(hf.AutoModelForCausalLM.from_pretrained(folder), theirs)
    assert same(hf.AutoModelForCausalLM.from_pretrained(str(folder), device_map="cpu"), theirs)
    model, told = hf.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert same(model, theirs)
    assert not any(told.values())
    assert hf.GenerationConfig.from_pretrained(folder).max_new_tokens == 17
    bf16torch.unpatch_transformers()
    bf16torch.unpatch_transformers()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        hf.AutoModelForCausalLM.from_pretrained(folder)


def test_patching_replaces_and_restores(patch):
    ours = functions()
    bf16torch.unpatch_transformers()
    theirs = functions()
    assert [function.__wrapped__ for function in ours] == theirs


def test_patches_of_others_stay(native, folder, monkeypatch):
    monkeypatch.setattr(
        "transformers.modeling_utils.load_state_dict", modeling.load_state_dict
    )  # and is undone
    bf16torch.patch_transformers()
    ours = modeling.load_state_dict

    @functools.wraps(ours)
    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    modeling.load_state_dict = theirs
    bf16torch.unpatch_transformers()
    assert modeling.load_state_dict is theirs
    assert same(hf.AutoModelForCausalLM.from_pretrained(native), tiny_llama())
    with pytest.raises(OSError, match=r"model\.safetensors"):
        hf.AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture
def restored(monkeypatch):
    """Restore the attributes after a test."""
    for patch in patches():
        monkeypatch.setattr(f"{patch.module}.{patch.name}", patch.current)


@pytest.mark.usefixtures("restored")
def test_hidden_patches_of_others(native, folder):
    """It stays, nothing fails, and patching again takes effect."""
    bf16torch.patch_transformers()
    calls = []
    for patch in patches():
        below = patch.current
        patch.assign(lambda *a, _f=below, **k: calls.append(_f) or _f(*a, **k))
    theirs = functions()
    assert same(hf.AutoModelForCausalLM.from_pretrained(folder), tiny_llama())
    bf16torch.patch_transformers()
    for _ in range(2):
        assert same(bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder), tiny_llama())
    bf16torch.unpatch_transformers()
    assert functions() == theirs
    with pytest.raises(OSError, match=r"model\.safetensors"):
        hf.AutoModelForCausalLM.from_pretrained(folder)
    assert same(bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder), tiny_llama())
    assert functions() == theirs
    bf16torch.patch_transformers()
    assert same(hf.AutoModelForCausalLM.from_pretrained(folder), tiny_llama())
    bf16torch.unpatch_transformers()
    assert functions() == theirs
    assert same(hf.AutoModelForCausalLM.from_pretrained(native), tiny_llama())
    assert calls


@pytest.mark.usefixtures("restored")
def test_functions_that_replace_ours(folder):
    """Then nothing is left to undo, and patching again checks the replacement first."""
    before = functions()
    bf16torch.patch_transformers()
    modeling.load_state_dict = lambda path: None
    with pytest.raises(ImportError, match="install one of these"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder)
    bf16torch.unpatch_transformers()
    assert modeling._get_resolved_checkpoint_files is before[0]
    modeling.load_state_dict = before[1]
    bf16torch.patch_transformers()
    assert same(hf.AutoModelForCausalLM.from_pretrained(folder), tiny_llama())
    bf16torch.unpatch_transformers()
    assert functions() == before


def test_pipelines(tmp_path, native, folder, patch):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, **{f"w{i}": i for i in range(1, 128)}}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=model, unk_token="[UNK]")
    found = []
    for place in (folder, native):
        shutil.copytree(place, tmp_path / place.name)
        fast.save_pretrained(tmp_path / place.name)
        generate = hf.pipeline("text-generation", str(tmp_path / place.name))
        found.append(generate("w1 w5 w9", do_sample=False)[0]["generated_text"])
    assert found[0] == found[1]
    assert found[0].count("w") > 3


def test_native_files_go_first(tmp_path, patch):
    """A folder that transformers can load is loaded as before; `from_pretrained` asks which one."""
    native = saved(tmp_path / "both")
    other = tiny_llama()
    with torch.no_grad():
        other.model.norm.weight.fill_(7)
    bf16torch.save_file(other.state_dict(), native / "model.zarr")
    assert same(hf.AutoModelForCausalLM.from_pretrained(native), tiny_llama())
    with pytest.raises(StoreError, match=r"has model\.safetensors and model\.zarr: remove the one"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, native)
    store = native / "model.zarr"
    assert same(bf16torch.from_pretrained(hf.AutoModelForCausalLM, store), other)
    (native / "model.safetensors").unlink()
    assert same(hf.AutoModelForCausalLM.from_pretrained(native), other)
    with pytest.raises(OSError, match=r"pytorch_model\.bin"):
        hf.AutoModelForCausalLM.from_pretrained(native, use_safetensors=False)


def test_other_folders_and_names_are_as_before(tmp_path, monkeypatch, patch):
    tiny_config().save_pretrained(tmp_path / "empty")
    with pytest.raises(OSError, match=r"model\.safetensors"):
        hf.AutoModelForCausalLM.from_pretrained(tmp_path / "empty")
    with pytest.raises(OSError, match=r"connect|no-such"):
        hf.LlamaForCausalLM.from_pretrained("no-such/model", local_files_only=True)
    state = tiny_llama().state_dict()
    ours = hf.LlamaForCausalLM.from_pretrained(None, config=tiny_config(), state_dict=state)
    assert same(ours, tiny_llama())
    torch.save(state, tmp_path / "empty" / "pytorch_model.bin")
    assert same(hf.LlamaForCausalLM.from_pretrained(tmp_path / "empty"), tiny_llama())


def test_explicit_files(tmp_path, patch):
    """A configuration may name the file of the weights."""
    native = saved(tmp_path / "native")
    (native / "model.safetensors").rename(native / "own.safetensors")
    config = json.loads((native / "config.json").read_text())
    (native / "config.json").write_text(
        json.dumps({**config, "transformers_weights": "own.safetensors"})
    )
    packed(native, tmp_path / "packed")
    assert same(hf.AutoModelForCausalLM.from_pretrained(tmp_path / "packed"), tiny_llama())
    config["transformers_weights"] = "../packed/own.safetensors"
    shutil.copytree(tmp_path / "packed", tmp_path / "strange")
    (tmp_path / "strange" / "config.json").write_text(json.dumps(config))
    with pytest.raises((ValueError, OSError), match=r"own\.safetensors"):
        hf.AutoModelForCausalLM.from_pretrained(tmp_path / "strange")


def test_threads(native, folder, tmp_path):
    """Concurrent threads each load their own folder; transformers itself loads one at a time."""

    class Resolving:
        @staticmethod
        def from_pretrained(place):
            barrier.wait()
            files, _ = modeling._get_resolved_checkpoint_files(place, None, None, None, None, False)
            barrier.wait()
            return len(modeling.load_state_dict(files[0]))

    def load(path):
        found.append(bf16torch.from_pretrained(Resolving, path, config=native))

    stores = [tmp_path / f"model-{i}.zarr" for i in range(4)]
    for path in stores:
        shutil.copytree(folder / "model.zarr", path)
    found, barrier = [], threading.Barrier(len(stores), timeout=60)
    threads = [threading.Thread(target=load, args=(path,)) for path in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [len(tiny_llama().state_dict())] * len(stores)


def test_state_dicts_at_a_place(folder, patch):
    """As transformers loads them for DeepSpeed: whole, on the CPU or without data."""
    (path,), _ = stored_files.files_in(str(folder / "model.zarr"), {})
    state = modeling.load_state_dict(path, map_location="cpu")
    assert bits_of(tiny_llama())["model.norm.weight"][1] == tuple(state["model.norm.weight"].shape)
    empty = modeling.load_state_dict(path, map_location="meta")
    assert {n: (t.dtype, t.shape) for n, t in empty.items()} == {
        n: (t.dtype, t.shape) for n, t in state.items()
    }
    assert all(tensor.is_meta for tensor in empty.values())


# --- installed releases ---------------------------------------------------------------------------


def test_other_releases_of_transformers_are_refused(monkeypatch, folder):
    def other(pretrained_model_name_or_path, subfolder, from_tf):
        raise AssertionError("not to be called")

    monkeypatch.setattr("transformers.modeling_utils._get_resolved_checkpoint_files", other)
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.0")
    told = r"transformers 4\.57\.0 .*: 5\.0, 5\.23 and 5\.24 were tried: install one of these"
    for call in (
        bf16torch.patch_transformers,
        lambda: bf16torch.from_pretrained(hf.AutoModelForCausalLM, folder),
    ):
        with pytest.raises(ImportError, match=told):
            call()
    monkeypatch.delattr("transformers.modeling_utils._get_resolved_checkpoint_files")
    with pytest.raises(ImportError, match=told):
        bf16torch.patch_transformers()


def test_without_transformers(monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for call in (
        bf16torch.patch_transformers,
        lambda: bf16torch.from_pretrained(bf16torch, folder),
    ):
        with pytest.raises(
            ImportError, match=r"pip install 'bf16codecs\[transformers\]'"
        ) as caught:
            call()
        assert caught.value.name == "transformers"


@pytest.mark.slow
def test_without_transformers_from_the_start(run_python, folder):
    code = """
import sys
sys.modules["transformers"] = None
import bf16codecs.torch
for call in (
    lambda: bf16codecs.torch.patch_transformers(),
    lambda: bf16codecs.torch.from_pretrained(bf16codecs.torch, sys.argv[1]),
    lambda: bf16codecs.torch.RunCallback,
):
    try:
        call()
    except ImportError as error:
        print(error.name, error)
"""
    lines = run_python(code, str(folder)).stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("transformers")
        assert "pip install 'bf16codecs[transformers]'" in line
