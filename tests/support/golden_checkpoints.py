"""Makes the golden stores of training jobs: of processes with parts of matrices each."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from bf16codecs import open_model
from bf16codecs.convert import plan
from bf16codecs.torch import publish
from bf16codecs.torch.checkpoint import StoreWriter, planning
from bf16codecs.torch.publishing import planning as publishing
from checkpoint_job import run_job, scenario

PROCESSES = 4
#: Axes that tensors are sharded along: two of them where processes have quarters.
AXES = {
    "model.embed.weight": (0, 1),
    "head.weight": (0, 1),
    "new.1": (1,),
    "low": (1,),
    "master": (1,),
    "wide": (1,),
    "codes": (0,),
}


def safetensors_to_checkpoint(
    folder: str | os.PathLike[str], store: Path, *, chunk_size: int, base: Path | None = None
) -> None:
    """Let a job save the tensors of a model, and objects; the store is a ZIP."""
    made = store.with_name("model.zarr")
    # Much smaller than what a job would have, so that the store is.
    with (
        patch.object(planning, "SMALL_BYTES", 1024),
        patch.object(planning, "_LEAST_BYTES", 256),
        patch.object(plan, "_LEAST_BYTES", 256),
    ):
        job = f"save_golden:{PROCESSES}:{made}:{chunk_size}:{base or ''}"
        if run_job(Path(folder), job, 0):
            raise RuntimeError(f"{store}: its job failed")
    zip_folder(made, store)


def zip_folder(made: Path, store: Path) -> None:
    """Let a ZIP file take the place of a folder."""
    files = sorted(path for path in made.rglob("*") if path.is_file())
    with zipfile.ZipFile(store, "w") as archive:
        for path in files:
            # Without the time at which it was made.
            archive.writestr(zipfile.ZipInfo(path.relative_to(made).as_posix()), path.read_bytes())
    shutil.rmtree(made)


def publish_files(folder: Path, store: Path, *, keyframe_every: int, keep_last: int) -> None:
    """Let a job publish the models of a folder, named by their steps; the store is a ZIP."""
    made = store.with_name("policy.zarr")
    # Much smaller than what a job would have, so that matrices have several chunks.
    with (
        patch.object(planning, "_LEAST_BYTES", 256),
        patch.object(publishing, "DEFAULT_CHUNK_SIZE", 512),
    ):
        job = f"publish_golden:{PROCESSES}:{made}:{keyframe_every}:{keep_last}"
        if run_job(folder, job, 0):
            raise RuntimeError(f"{store}: its job failed")
    zip_folder(made, store)


@scenario
def publish_golden(folder: Path, made: str, keyframe_every: str, keep_last: str) -> None:
    for file in sorted(folder.glob("*.safetensors")):
        number = int(file.stem.partition("-")[2])
        with open_model(file) as model:
            own = {name: placed(name, tensor.torch()) for name, tensor in model.items()}
        own["head.weight"] = own["model.embed.weight"]
        options = {"keyframe_every": int(keyframe_every)} if number == 10 else {}
        publish(made, own, number, keep_last=int(keep_last), **options)


@scenario
def save_golden(folder: Path, made: str, chunk_size: str, base: str) -> None:
    writer = StoreWriter(made, chunk_size=int(chunk_size), base=base or None)
    dcp.save(state(next(folder.glob("*.safetensors"))), storage_writer=writer)


def state(source: Path) -> dict[str, Any]:
    """Return the state dict of a process: tensors in nested dictionaries, and other objects."""
    with open_model(source) as model:
        tensors = {name: placed(name, tensor.torch()) for name, tensor in model.items()}
    embed = tensors.pop("model.embed.weight")
    rank = torch.distributed.get_rank()
    return {
        **tensors,
        "model": {"embed.weight": embed},
        "epoch": 3,
        "betas": (0.9, 0.95),
        "groups": [{"rate": 0.5}],
        "random": {f"rank {rank}": bytes([rank]) * 5},
    }


def placed(name: str, whole: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a process has it."""
    axes = AXES.get(name)
    if axes is None:
        return whole
    mesh = init_device_mesh("cpu", (2, 2) if len(axes) == 2 else (PROCESSES,))
    return distribute_tensor(whole, mesh, list(map(Shard, axes)), src_data_rank=None)
