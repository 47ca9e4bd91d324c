"""Train on some processes, die, and go on with others, to the same bits.

    torchrun --nproc-per-node 4 train.py RUN [--steps 60] [--every 10] [--die-at 35]
    torchrun --nproc-per-node 2 train.py RUN

Every N steps, weights and optimizer state become RUN/step-N.zarr, each a difference to the one
before; a second start goes on where the last one ends. Parameters and optimizer are sharded over
all processes; each computes gradients of its part of a batch of 4 sequences.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor
from torch.func import functional_call

from bf16codecs.torch.checkpoint import StoreReader, StoreWriter

BATCH, LENGTH = 4, 64
TEXT = torch.tensor(list(Path(torch.__file__).read_bytes()[: 1 << 16]))


class Model(torch.nn.Module):
    """Predicts the next byte from the last ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(256, 128)
        self.mix = torch.nn.GRU(128, 128, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(128, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.mix(self.embed(text[:, :-1]))[0])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def shard(name: str, module: torch.nn.Module, mesh: dist.DeviceMesh) -> None:
    for key, tensor in module.named_parameters(recurse=False):
        own = distribute_tensor(tensor.data, mesh, [Shard(0)])
        module.register_parameter(key, torch.nn.Parameter(own))


def batch(step: int) -> torch.Tensor:
    starts = torch.randint(len(TEXT) - LENGTH, (BATCH,), generator=torch.manual_seed(step))
    return torch.stack([TEXT[start : start + LENGTH] for start in starts.tolist()])


def train_step(model: Model, optimizer: torch.optim.Optimizer, step: int) -> float:
    """Add up the gradients in the order of the batch, so that it is the same for any processes."""
    rank, size, names = dist.get_rank(), dist.get_world_size(), [n for n, _ in model.named_parameters()]
    whole = {n: p.full_tensor().detach().requires_grad_() for n, p in model.named_parameters()}
    losses = [functional_call(model, whole, (part,)) for part in batch(step)[rank::size, None]]
    found = [torch.autograd.grad(loss, list(whole.values())) for loss in losses]
    every = [None] * size
    dist.all_gather_object(every, found)
    ordered = [every[i % size][i // size] for i in range(BATCH)]
    for i, (name, parameter) in enumerate(model.named_parameters()):
        total = sum(own[i] for own in ordered) / BATCH
        parameter.grad = distribute_tensor(total, parameter.device_mesh, parameter.placements)
    optimizer.step()
    return losses[0].item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--die-at", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = Model()
    distribute_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), shard)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saved = sorted(args.run.glob("step-*.zarr"), key=lambda path: int(path.stem[5:]))
    first = 0
    if saved:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": 0}
        dcp.load(state, storage_reader=StoreReader(saved[-1]))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        first = state["step"]
    for step in range(first + 1, args.steps + 1):
        loss = train_step(model, optimizer, step)
        if step == args.die_at and dist.get_rank() == 0:
            os.kill(os.getpid(), 9)
        if step % args.every == 0:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "step": step}
            writer = StoreWriter(args.run / f"step-{step}.zarr", base="previous")
            dcp.save(state, storage_writer=writer)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
