"""Train on some processes, die, and continue on another number of processes, to the same bits.

    torchrun --nproc-per-node 4 train.py RUN [--die-at 35]
    torchrun --nproc-per-node 2 train.py RUN

A model of 0.2 million parameters learns to predict the next byte. Parameters and optimizer are
sharded over all processes; each computes the gradients of some of 4 parts of a batch. Every 10
steps, weights and optimizer are saved to RUN/step-N.zarr, as differences to the previous save. The
next start continues from the last save.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.func import functional_call
from torch.nn import Embedding, Flatten, Linear, Parameter, ReLU, Sequential

from bf16codecs.torch.checkpoint import StoreReader, StoreWriter, latest_checkpoint

STEPS, EVERY, PARTS, CONTEXT = 60, 10, 4, 16
TEXT = torch.tensor(list(Path(torch.__file__).read_bytes()[: 1 << 16]))


def gradients(model: Sequential, step: int) -> list[torch.Tensor]:
    """Return the mean gradients of all parts, added in an order that processes do not affect."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = {n: p.full_tensor().detach().requires_grad_() for n, p in model.named_parameters()}
    starts = torch.randint(len(TEXT) - CONTEXT, (PARTS, 64), generator=torch.manual_seed(step))
    local: list[Any] = []
    for part in starts[rank::size]:
        text = torch.stack([TEXT[start : start + CONTEXT + 1] for start in part.tolist()])
        guess = functional_call(model, whole, (text[:, :-1],))
        loss = torch.nn.functional.cross_entropy(guess, text[:, -1])
        local.append(torch.autograd.grad(loss, list(whole.values())))
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, local)
    ordered = [gathered[i % size][i // size] for i in range(PARTS)]
    return [sum(parts[1:], parts[0]) / PARTS for parts in zip(*ordered, strict=True)]


def main() -> None:
    """Train, from the last checkpoint on if one exists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="a folder on a disk, or the address of one in a bucket")
    parser.add_argument("--die-at", type=int, metavar="STEP")
    args = parser.parse_args()
    args.run = args.run.rstrip("/")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layers = Embedding(256, 32), Flatten(), Linear(32 * CONTEXT, 256), ReLU(), Linear(256, 256)
    model = Sequential(*layers)
    for layer in model:
        for name, tensor in list(layer.named_parameters()):
            setattr(layer, name, Parameter(distribute_tensor(tensor.data, mesh, [Shard(0)])))
    optimizer = torch.optim.AdamW(model.parameters())

    # One process looks, so that all go on from the same one.
    found = [latest_checkpoint(args.run) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    first, last = 0, found[0]
    if last is not None:
        first = int(Path(last).stem.removeprefix("step-"))
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, storage_reader=StoreReader(last))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        if dist.get_rank() == 0:
            print(f"continuing from step {first}")

    for step in range(first + 1, STEPS + 1):
        for parameter, total in zip(model.parameters(), gradients(model, step), strict=True):
            parameter.grad = distribute_tensor(total, mesh, [Shard(0)])
        optimizer.step()
        if step == args.die_at and dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            writer = StoreWriter(f"{args.run}/step-{step}.zarr", base="previous", level="auto")
            dcp.save({"model": weights, "optimizer": moments}, storage_writer=writer)
            if dist.get_rank() == 0:
                print(f"saved step {step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
