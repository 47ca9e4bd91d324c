"""Files that readers of the documentation have when they reach a code block."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

import bf16codecs
from bf16codecs import hdf5
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr
from checkout import ROOT

#: Of the demo's model, as transformers writes it.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "dtype": "bfloat16",
}


_OTHERS = {"pytorch_model.bin": "torch_files/state.bin", "model.gguf": "gguf_files/little.gguf"}


def make_given(names: Iterable[str], folder: Path, model: Path) -> None:
    """Make files in a folder: what they are, their names say.

    Safetensors files are the demo's model; with a number in the name, trained on from it by small
    random steps. Stores are of that model: ``fine.zarr`` on ``model.zarr`` as base, all others
    whole. ``plain.h5`` has datasets without a filter; ``config.json`` is what transformers has of
    the model. ``pytorch_model.bin`` and ``model.gguf`` are small models of other programs.
    """
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "plain.h5":
            _make_plain(path)
        elif name.endswith("config.json"):
            path.write_text(json.dumps(CONFIG))
        elif name in _OTHERS:
            shutil.copy(ROOT / "tests" / "convert" / "goldens" / _OTHERS[name], path)
        elif path.suffix == ".safetensors":
            _make_model(path, model)
        elif path.suffix == ".h5":
            safetensors_to_hdf5(model, path)
        else:
            base = folder / "model.zarr" if name == "fine.zarr" else None
            safetensors_to_zarr(model, path, base=base)


def _make_model(path: Path, model: Path) -> None:
    step = "".join(filter(str.isdigit, path.stem))
    if not step:
        shutil.copy(model, path)
        return
    rng = np.random.default_rng(int(step))
    with bf16codecs.open_model(model) as opened:
        arrays = {name: array.astype("f4") for name, array in opened.load().items()}
    moved = {n: a + rng.normal(0, 2e-4, a.shape).astype("f4") for n, a in arrays.items()}
    save_file({name: array.astype(ml_dtypes.bfloat16) for name, array in moved.items()}, path)


def _make_plain(path: Path) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        weights = rng.normal(0, 0.02, (256, 96)).astype(ml_dtypes.bfloat16)
        hdf5.write_tensor(file, "lm_head/weight", weights, compression=None)
        file["other"] = weights.astype("f4")
        file["t2m"] = rng.normal(0, 1, (48, 90, 180)).cumsum(axis=0).astype("f4")
