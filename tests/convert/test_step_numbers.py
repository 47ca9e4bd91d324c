"""Step numbers of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from bf16codecs import open_run
from bf16codecs.convert import append_to_run, safetensors_to_run
from bf16codecs.convert.runs.step_numbers import find_number, series_of
from bf16codecs.safetensors import SafetensorsError
from models import entry, file_bytes

NAMED = {
    "tinylm-step00600.safetensors": 600,
    "tinylm-step00600-fp32.safetensors": 600,
    "model_step_7.safetensors": 7,
    "iter=0012.safetensors": 12,
    "checkpoint-500/model.safetensors": 500,
    "checkpoint-500/model-00001-of-00002.safetensors": 500,
    "run3/Step-9/model.safetensors": 9,
    "checkpoint-500/checkpoint-00001-of-00002.safetensors": 500,
    "42.safetensors": 42,
    "500/model.safetensors": 500,
    "epoch2-step30.safetensors": 30,
    # From trainers: transformers, DeepSpeed, Pythia, Megatron, Lightning, OLMo, Amber, lit-gpt.
    "checkpoint-500/llama-3-8b.safetensors": 500,
    "global_step1000/mp_rank_00_model_states.safetensors": 1000,
    "pythia-160m/step143000.safetensors": 143000,
    "iter_0005000/model.safetensors": 5000,
    "epoch=3-step=1000.safetensors": 1000,
    "epoch=3-step=1000-v1.safetensors": 1000,
    "epoch_3.safetensors": 3,
    "step1000-tokens4B/model.safetensors": 1000,
    "ckpt_100/model.safetensors": 100,
    "iter-000500-ckpt.safetensors": 500,
    "llama-3-8b-step-500.safetensors": 500,
    "checkpoint-500/step-500.safetensors": 500,
    "7/step-500.safetensors": 500,
    "steps1/step-500.safetensors": 500,
    "lora_steps_500.safetensors": 500,
    f"step{2**63 - 1}.safetensors": 2**63 - 1,
}

#: Ambiguous names, from which no step is read, and the part that the message quotes.
UNCERTAIN = {
    "llama-7b-300.safetensors": "7b, 300 in 'llama-7b-300'",
    "Qwen2.5-0.5B/model.safetensors": "Qwen2, 5, 0, 5B in 'Qwen2.5-0.5B'",
    "step_10k.safetensors": "10k in 'step_10k'",
    "step-1431k-3T.safetensors": "1431k, 3T in",
    "ema_0.9999_100000.safetensors": "0, 9999, 100000 in",
    "model100000.safetensors": "model100000 in",
    "2024-05-01/model.safetensors": "2024, 05, 01 in",
    "v2/model.safetensors": "v2 in 'v2'",
    "step-0.5.safetensors": "0, 5 in",
    f"step{2**63}.safetensors": f"step{2**63} in",
    f"step{10**19}.safetensors": f"step{10**19} in",
    "step-4bit.safetensors": "4bit in",
    "timestep3.safetensors": "timestep3 in",
    "fp32.safetensors": "fp32 in",
    "checkpoint_1_500.safetensors": "1, 500 in",
    "checkpoint1.safetensors": "checkpoint1 in",
    "checkpoint-00001-of-00002.safetensors": "00001, 00002 in",
    "rl_model_1000_steps.safetensors": "1000 in",
    "step-5-step-7.safetensors": "5 by its name 'step-5-step-7' or 7 by",
    "checkpoint-500/step-600.safetensors": "600 by its name 'step-600' or 500 by its name 'checkp",
    "7/42.safetensors": "42 by its name '42' or 7 by its name '7'",
    # Numbers of several parts, of which the first one alone would be another number.
    "step-1,000.safetensors": "1, 000 in",
    "step-1'000.safetensors": "1, 000 in",
    "step 1 000.safetensors": "1, 000 in",
    "step 1\u2019000.safetensors": "1, 000 in",
    "checkpoint-1,000/model.safetensors": "1, 000 in",
    "step-10,5.safetensors": "10, 5 in",
    "step-100+50.safetensors": "100, 50 in",
    "step-100 + 50.safetensors": "100, 50 in",
    "step-1_000.safetensors": "1, 000 in",
    "step-100..200.safetensors": "100, 200 in",
    "step-100-to-200.safetensors": "100, 200 in",
    "step 1 of 2.safetensors": "1, 2 in",
    "step_00001_of_00002.safetensors": "00001, 00002 in",
    "step-10 k.safetensors": "10 in",
    "step-10%.safetensors": "10 in",
    "step-10\u00b3.safetensors": "10 in",
    # Then no other source of the number is used.
    "epoch2-step-1,000.safetensors": "epoch2, 1, 000 in",
    "epoch2-step10k.safetensors": "epoch2, step10k in",
    "checkpoint-500/step-1,000.safetensors": "1, 000 in 'step-1,000'; 500 in 'checkpoint-500'",
    "checkpoint-10k/500.safetensors": "500 in '500'; 10k in 'checkpoint-10k'",
    "step-5-step-1,000.safetensors": "5, 1, 000 in",
    "step-5.5.safetensors": "5, 5 in",
    "step-1e3.safetensors": "1e3 in",
}


def checkpoint(path: Path, **metadata: str) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    header = {"__metadata__": metadata, "a": entry("U8", (1,))}
    path.write_bytes(file_bytes(header, b"x"))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder for checkpoints; neither its name nor that of the one above has a number."""
    (tmp_path / "above" / "here").mkdir(parents=True)
    return tmp_path / "above" / "here"


def steps_of(paths: list[Path], numbers: list[int] | None = None) -> list[int]:
    """Return the steps of a run of checkpoints."""
    store = paths[0].with_name("run.zarr")
    safetensors_to_run(paths, store, steps=numbers, overwrite=True, sync=False, verify=False)
    with open_run(store) as run:
        return run.steps


def test_names(folder: Path) -> None:
    for name, step in NAMED.items():
        assert steps_of([checkpoint(folder / name)]) == [step], name


def test_metadata_come_first(folder: Path) -> None:
    for key in ("step", "global_step", "iteration"):
        assert steps_of([checkpoint(folder / "step5.safetensors", **{key: "77"})]) == [77], key


def test_metadata_that_are_no_number(folder: Path) -> None:
    """They show that the checkpoint has a step number, which may differ from the name's."""
    for value in ("5.0", "1e3", "1_000", " 7 ", "-1", "x", "1.5", "9" * 30, "\u0663"):
        for key in ("step", "global_step", "iteration"):
            path = checkpoint(folder / "checkpoint-9.safetensors", **{key: value})
            with pytest.raises(SafetensorsError, match=r"certain .*with step= or steps=") as error:
                steps_of([path])
            assert f"{value!r:.80} in its metadata {key!r}; 9 in 'checkpoint-9'" in str(error.value)
            assert steps_of([path], [7]) == [7]
    path = checkpoint(path, step="9", global_step="9.0")
    with pytest.raises(SafetensorsError, match=r"'9\.0' in its metadata 'global_step'"):
        steps_of([path])


def test_metadata_that_are_empty(folder: Path) -> None:
    """They have no influence."""
    for value in ("", " "):
        path = checkpoint(folder / "step5.safetensors", step=value)
        assert steps_of([path]) == [5]
        assert find_number([{"step": value}], path) == 5


def test_uncertain_steps_are_not_reported(folder: Path) -> None:
    """Where nobody can be asked, no step number is reported."""
    assert find_number([{}], "checkpoint-9") == 9
    assert find_number([{"step": "5.0"}], "checkpoint-9") is None
    assert find_number([{}], "checkpoint-1,000") is None
    for name in ("step-1,000.zarr", f"step-{2**63}.zarr", "step-\u0663.zarr"):
        assert series_of(name) is None, name


def test_metadata_that_disagree(folder: Path) -> None:
    path = checkpoint(folder / "step5.safetensors", step="3", global_step="77")
    with pytest.raises(
        SafetensorsError, match=r"3 by its metadata 'step' or 77 by its metadata 'g"
    ):
        steps_of([path])
    assert steps_of([checkpoint(path, step="77", global_step="77")]) == [77]


def test_names_that_are_not_certain(folder: Path) -> None:
    """A step keeps its number for ever, so an uncertain one is refused."""
    for name, shown in UNCERTAIN.items():
        path = checkpoint(folder / name)
        with pytest.raises(
            SafetensorsError, match=r"(certain|which step is it).*with step= or steps="
        ) as error:
            steps_of([path])
        assert shown in str(error.value), name


def test_an_append_reports_the_source_of_the_step(folder: Path) -> None:
    run = folder / "run.zarr"
    in_folder = checkpoint(folder / "checkpoint-5" / "model.safetensors")
    named = checkpoint(folder / "step-7.safetensors")
    noted = checkpoint(folder / "step-8.safetensors", iteration="9")
    for path, given, step, by in (
        (in_folder, None, 5, "name 'checkpoint-5'"),
        (named, None, 7, "name 'step-7'"),
        (noted, None, 9, "metadata 'iteration'"),
        (noted, 11, 11, ""),
    ):
        summary = append_to_run(path, run, given, sync=False)
        assert (summary.step, summary.step_by) == (step, by)


def test_nothing_tells(folder: Path) -> None:
    for name in ("model.safetensors", "fp32.safetensors", "v2final.safetensors"):
        with pytest.raises(SafetensorsError, match=f"{name}: .*give it with step= or steps="):
            steps_of([checkpoint(folder / name)])


def test_order_and_repetition(folder: Path) -> None:
    paths = [checkpoint(folder / f"step{n}.safetensors") for n in (100, 9, 1000)]
    assert steps_of(paths) == [9, 100, 1000]
    assert steps_of(paths, [3, 2, 1]) == [1, 2, 3]
    again = checkpoint(folder / "other" / "step9.safetensors")
    with pytest.raises(SafetensorsError, match=r"is step 9, and so is .*step9"):
        steps_of([*paths, again])
