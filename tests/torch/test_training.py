"""Checkpoints of a `Trainer` become steps of a run."""

from __future__ import annotations

import pickle
import shutil
from types import SimpleNamespace

import pytest

import bf16codecs
from bf16codecs.errors import SafetensorsError, StoreError, TensorChangeWarning
from lazy_imports import lazily
from lazy_models import weights, write_safetensors
from tiny_llama import bits_of, tiny_llama

torch = lazily("torch")
transformers = lazily("transformers")
bf16torch = lazily("bf16codecs.torch")

pytestmark = pytest.mark.usefixtures("needs_transformers", "needs_accelerate")


def train(folder, run, steps, resume=False, model=None, **options):
    """Train a tiny model, or a given one, and return the final weights."""
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{"save_steps": 2, "learning_rate": 1e-2, **options},
    )
    row = {"input_ids": list(range(3, 11)), "labels": list(range(3, 11))}
    trainer = transformers.Trainer(
        tiny_llama() if model is None else model,
        arguments,
        train_dataset=[row] * 8,
        callbacks=[bf16torch.RunCallback(run)],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model


def state_of(folder, step):
    return bf16torch.load_file(folder / f"checkpoint-{step}" / "model.safetensors")


def same(state, other):
    return state.keys() == other.keys() and all(
        torch.equal(state[n].view(torch.uint8), other[n].view(torch.uint8)) for n in state
    )


@pytest.mark.parametrize("name", ["run.zarr", pytest.param("run.h5", marks=pytest.mark.slow)])
def test_steps_are_the_checkpoints(tmp_path, name):
    out, run = tmp_path / "out", tmp_path / name
    model = train(out, run, 6, save_total_limit=1)
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-6"]
    with bf16codecs.open_run(run) as opened:
        assert list(opened.steps) == [2, 4, 6]
        assert opened[2].load().keys() == opened[6].load().keys()
        changed = opened["model.norm.weight"][0] != opened["model.norm.weight"][2]
        assert changed.any()
    assert same(bf16torch.load_file(f"{run}@6"), state_of(out, 6))
    ours = bf16torch.from_pretrained(
        transformers.AutoModelForCausalLM, f"{run}@6", config=out / "checkpoint-6"
    )
    assert bits_of(ours) == bits_of(model)


def test_resuming_writes_no_step_twice(tmp_path):
    out, run = tmp_path / "out", tmp_path / "run.zarr"
    train(out, run, 6)
    before = bf16torch.load_file(f"{run}@4")
    for step in (4, 6):
        shutil.rmtree(out / f"checkpoint-{step}")
    train(out, run, 6, resume=True)  # from step 2
    with bf16codecs.open_run(run) as opened:
        assert list(opened.steps) == [2, 4, 6]
    assert same(bf16torch.load_file(f"{run}@4"), before)
    assert same(bf16torch.load_file(f"{run}@6"), state_of(out, 6))


@pytest.mark.parametrize(
    "options",
    [{"learning_rate": 1e-3}, pytest.param({"save_steps": 1}, marks=pytest.mark.slow)],
)
def test_another_training_is_refused(tmp_path, options):
    """Its steps may lie between those of the run, or be the same with other weights."""
    out, run = tmp_path / "out", tmp_path / "run.zarr"
    train(out, run, 4)
    with pytest.raises(StoreError, match=r"has the steps of another training, up to 4"):
        train(tmp_path / "other", run, 4, **options)
    with bf16codecs.open_run(run) as opened:
        assert list(opened.steps) == [2, 4]
    assert same(bf16torch.load_file(f"{run}@2"), state_of(out, 2))


def test_paths_that_are_no_runs(tmp_path):
    for name in ("run.tar", "run.safetensors"):
        with pytest.raises(ValueError, match="choose another name"):
            bf16torch.RunCallback(tmp_path / name)
    bf16torch.save_file(tiny_llama().state_dict(), tmp_path / "model.zarr")
    with pytest.raises(StoreError, match="one model, not a run"):
        train(tmp_path / "out", tmp_path / "model.zarr", 2)
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_places_where_no_run_can_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, told in (
        ("http://127.0.0.1:1/r.zarr", "targets must be local"),
        ("r.zarr@3", "reads as step 3 of r.zarr: leave out @3"),
        ("r.h5/", "choose another name"),
        ("r.zarr.zip", "choose another name"),
    ):
        with pytest.raises(ValueError, match=told):
            bf16torch.RunCallback(path)
        assert not list(tmp_path.iterdir()), path


def test_options_are_checked_before_training():
    for option, value, error in (
        ("codec", "nope", ValueError),
        ("codec", "zstd", ValueError),
        ("level", "silly", ValueError),
        ("keyframe_every", 0, ValueError),
        ("keyframe_every", "x", TypeError),
        ("chunk_size", 0, ValueError),
        ("chunk_size", None, TypeError),
        ("zarr_format", 4, ValueError),
        ("threads", 0, ValueError),
        ("threads", "two", TypeError),
    ):
        with pytest.raises(error, match=option):
            bf16torch.RunCallback("run.zarr", **{option: value})
        fine = None if option != "chunk_size" else 65536
        bf16torch.RunCallback("run.zarr", **{option: fine})


def test_the_folder_of_the_run_is_made(tmp_path):
    train(tmp_path / "out", tmp_path / "new" / "run.zarr", 2)
    assert bf16codecs.open_run(tmp_path / "new" / "run.zarr").steps


def test_options_are_those_of_runs(tmp_path):
    train(tmp_path / "out", tmp_path / "run.zarr", 2)
    state = SimpleNamespace(is_world_process_zero=True, global_step=2)
    arguments = SimpleNamespace(output_dir=str(tmp_path / "out"))
    callback = bf16torch.RunCallback(tmp_path / "other.zarr", codec="huffman", keyframe_every=3)
    pickle.loads(pickle.dumps(callback)).on_save(arguments, state, None)
    with bf16codecs.open_run(tmp_path / "other.zarr") as run:
        assert "huffman" in str(run.info())
    callback = bf16torch.RunCallback(tmp_path / "other.zarr", codec="arithmetic")
    state.global_step = 4
    shutil.copytree(tmp_path / "out" / "checkpoint-2", tmp_path / "out" / "checkpoint-4")
    for call in (callback.on_train_begin, callback.on_save):
        with pytest.raises(ValueError, match="was made with codec huffman"):
            call(arguments, state, None)
    for own in ({}, {"codec": "huffman"}, {"keyframe_every": 3}):
        bf16torch.RunCallback(tmp_path / "other.zarr", **own).on_train_begin(arguments, state, None)
    for wrong in ({"kodec": "huffman"}, {"step": 3}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            bf16torch.RunCallback(tmp_path / "run.zarr", **wrong)


def test_tensors_that_change_are_refused(tmp_path):
    """As when training continues in another precision."""
    state = SimpleNamespace(is_world_process_zero=True, global_step=1)
    arguments = SimpleNamespace(output_dir=str(tmp_path))
    for step, dtype in ((1, "bfloat16"), (2, "float32")):
        (tmp_path / f"checkpoint-{step}").mkdir()
        arrays = {"a": weights((8, 8), dtype)}
        write_safetensors(tmp_path / f"checkpoint-{step}" / "model.safetensors", arrays)
    callback = bf16torch.RunCallback(tmp_path / "run.zarr")
    callback.on_save(arguments, state, None)
    state.global_step = 2
    with pytest.raises(StoreError, match=r"F32, not BF16.*allow_changed_tensors=True"):
        callback.on_save(arguments, state, None)
    callback = bf16torch.RunCallback(tmp_path / "run.zarr", allow_changed_tensors=True)
    with pytest.warns(TensorChangeWarning):
        callback.on_save(arguments, state, None)


def with_adapters(*names):
    """Return a tiny model of PEFT."""
    peft = pytest.importorskip("peft", reason="needs peft")
    options = {"target_modules": ["q_proj"], "r": 2}
    model = peft.get_peft_model(tiny_llama(), peft.LoraConfig(**options), adapter_name=names[0])
    for name in names[1:]:
        model.add_adapter(name, peft.LoraConfig(**options))
    return model


def test_an_adapter_is_stored(tmp_path):
    out, run = tmp_path / "out", tmp_path / "run.zarr"
    train(out, run, 4, model=with_adapters("default"), save_total_limit=1)
    saved = bf16torch.load_file(out / "checkpoint-4" / "adapter_model.safetensors")
    assert same(bf16torch.load_file(f"{run}@4"), saved)
    assert bf16codecs.open_run(run).steps == [2, 4]


@pytest.mark.parametrize("names", [("default", "reference"), ("policy",)])
def test_adapters_in_folders_of_their_own_are_refused(tmp_path, names):
    """They are refused before training: none of their steps would be in the run."""
    out, run = tmp_path / "out", tmp_path / "run.zarr"
    with pytest.raises(ValueError, match=rf"has '{names[-1]}', which the Trainer saves in folders"):
        train(out, run, 2, model=with_adapters(*names))
    assert not run.exists()
    assert not list(out.glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["reference/adapter_model.safetensors"], "reference/adapter_model.safetensors"),
        (["ema/model.safetensors", "a/b/x.safetensors"], "a/b/x.safetensors, ema/model.saf"),
        (["reference/adapter_model.bin"], "reference/adapter_model.bin"),
        (["value/pytorch_model-00001-of-00002.bin"], "value/pytorch_model-00001-of-00002.bin"),
    ],
)
def test_weights_that_a_run_would_not_get(tmp_path, files, told):
    """As another callback saves them, or a model with adapters that came later."""
    folder = tmp_path / "checkpoint-2"
    for name in ["model.safetensors", *files]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / name, {"a": weights((8, 8))})
    state = SimpleNamespace(is_world_process_zero=True, global_step=2)
    arguments = SimpleNamespace(output_dir=str(tmp_path))
    callback = bf16torch.RunCallback(tmp_path / "run.zarr")
    with pytest.raises(StoreError, match=f"this folder alone, and not {told}"):
        callback.on_save(arguments, state, None)
    assert not (tmp_path / "run.zarr").exists()


def test_what_is_there_to_resume_from_is_left_alone(tmp_path):
    folder = tmp_path / "checkpoint-2"
    others = ("optimizer.bin", "pytorch_model_fsdp.bin", "global_step2/mp_rank_00_model_states.pt")
    for name in ("model.safetensors", "pytorch_model.bin", "training_args.bin", *others):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / name, {"a": weights((8, 8))})
    state = SimpleNamespace(is_world_process_zero=True, global_step=2)
    bf16torch.RunCallback(tmp_path / "run.zarr").on_save(
        SimpleNamespace(output_dir=str(tmp_path)), state, None
    )
    assert bf16codecs.open_run(tmp_path / "run.zarr").steps == [2]


def test_other_processes_write_nothing(tmp_path):
    state = SimpleNamespace(is_world_process_zero=False, global_step=2)
    bf16torch.RunCallback(tmp_path / "run.zarr").on_save(
        SimpleNamespace(output_dir="x"), state, None
    )
    assert not list(tmp_path.iterdir())


def test_checkpoints_without_safetensors(tmp_path):
    (tmp_path / "checkpoint-2").mkdir()
    state = SimpleNamespace(is_world_process_zero=True, global_step=2)
    for name, error, told in (
        ("optimizer.pt", SafetensorsError, r"no model in this folder"),
        ("pytorch_model.bin", StoreError, r"this folder alone, and not pytorch_model\.bin"),
    ):
        (tmp_path / "checkpoint-2" / name).touch()
        with pytest.raises(error, match=told):
            bf16torch.RunCallback(tmp_path / "run.zarr").on_save(
                SimpleNamespace(output_dir=str(tmp_path)), state, None
            )
    assert not (tmp_path / "run.zarr").exists()
