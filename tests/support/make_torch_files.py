"""Makes the folders torch_files and distcp_files of tests/convert/goldens with torch.

    python tests/support/make_torch_files.py

The files that are there were made by torch 2.13.0.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

import torch
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

FOLDER = Path(__file__).parent.parent / "convert" / "goldens" / "torch_files"


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30))
    model = model.to(torch.bfloat16)
    state = model.state_dict()
    torch.save(state, FOLDER / "state.bin")
    torch.save(state, FOLDER / "older.bin", _use_new_zipfile_serialization=False)
    torch.save(state, FOLDER / "protocol5.bin", pickle_protocol=5)
    torch.save(
        state,
        FOLDER / "older4.bin",
        pickle_protocol=4,
        _use_new_zipfile_serialization=False,
    )
    torch.save(model, FOLDER / "module.pt")
    whole = torch.randn(16, 24)
    tied = OrderedDict(
        embed=whole,
        head=whole,
        part=whole[4:8],
        turned=torch.randn(8, 6).t(),
        none=torch.empty(0, 3),
        scalar=torch.tensor(3.5, dtype=torch.float64),
        flags=torch.tensor([True, False]),
        complex=torch.randn(5, dtype=torch.complex128),
        small=torch.randn(9).to(torch.float8_e4m3fn),
        words=torch.arange(5).to(torch.uint16),
    )
    torch.save(tied, FOLDER / "tied.pth")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 20, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    checkpoint = {
        "epoch": 3,
        "model": state,
        "optimizer": optimizer.state_dict(),
        "losses": [torch.tensor([0.5, 0.25]), {"last": torch.tensor(1)}],
    }
    torch.save(checkpoint, FOLDER / "training.ckpt")
    quantized = torch.quantize_per_tensor(torch.randn(40, 10), 0.1, 0, torch.qint8)
    torch.save({"q": quantized, "sparse": torch.eye(6).to_sparse()}, FOLDER / "quantized.pt")
    torch.save(torch.randn(2000)[:10], FOLDER / "slice.pt")


def save_shards(rank: int) -> None:
    """Save a checkpoint of two processes: a tensor in two shards, one of both, and objects."""
    os.chdir(FOLDER.parent)  # the checkpoint keeps its path
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    weight = distribute_tensor(torch.randn(16, 12).to(torch.bfloat16), mesh, [Shard(0)])
    state = {"model": {"weight": weight, "bias": torch.arange(12.0)}, "epoch": 3, "names": ["a"]}
    checkpoint.save(state, checkpoint_id="distcp_files")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    torch.multiprocessing.spawn(save_shards, nprocs=2)
