"""Other decoders for GPUs that are installed: nvCOMP and DietGPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bf16codecs._base.messages import one_line
from bf16codecs.bench.gpu.decoders import Decoder
from bf16codecs.bench.gpu.work import Work
from bf16codecs.cuda.memory import Memory
from bf16codecs.errors import DeviceError

__all__ = ["AbsentPeer", "Peer", "gpu_peers"]

# nvCOMP's algorithms, and the data type that each takes the items as, by item size.
_NVCOMP: Sequence[tuple[str, dict[int, str]]] = (
    ("ANS", dict.fromkeys((1, 2, 4, 8), "|u1")),
    ("ANS", {2: "<f2", 4: "<f4"}),
    ("Bitcomp", {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8"}),
)
_DIETGPU_MEMORY = 384 << 20


class Peer(NamedTuple):
    """Another decoder: its name, and a function that prepares it."""

    name: str
    prepare: Callable[[Work], Decoder]


class AbsentPeer(NamedTuple):
    """A peer that cannot be measured, and why."""

    name: str
    why: str


def gpu_peers(dtype: str, item_size: int) -> tuple[list[Peer], list[AbsentPeer]]:
    """Return the peers that can be imported, and those that cannot.

    Parameters
    ----------
    dtype, item_size
        Data type of the items, and their size in bytes.
    """
    peers: list[Peer] = []
    absent: list[AbsentPeer] = []
    for name, install, make in (
        ("nvCOMP", "pip install nvidia-nvcomp-cu13, or -cu12", _nvcomp),
        ("DietGPU", "it has no wheels, and needs PyTorch", _dietgpu),
    ):
        try:
            peers += make(dtype, item_size)
        except ModuleNotFoundError:
            absent.append(AbsentPeer(name, f"not installed: {install}"))
        except Exception as e:
            absent.append(AbsentPeer(name, f"cannot be used: {one_line(e)}"))
    return peers, absent


class _View:
    """A part of the GPU's memory, with the interface that other packages import arrays by."""

    def __init__(self, address: int, nbytes: int, kind: str, owner: Memory) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (nbytes // int(kind[2:]),),
            "typestr": kind,
            "version": 3,
        }


def _views(work: Work, memory: Memory, kind: str) -> list[_View]:
    """Return views of all copies in a memory."""
    return [_View(memory.address + copy.offset, copy.nbytes, kind, memory) for copy in work.copies]


def _nvcomp(dtype: str, item_size: int) -> Iterator[Peer]:
    # Not `from nvidia import nvcomp`: other packages share the namespace, so that a missing nvcomp
    # would not raise ModuleNotFoundError.
    nvcomp = importlib.import_module("nvidia.nvcomp")
    for algorithm, kinds in _NVCOMP:
        if item_size in kinds:
            yield _nvcomp_peer(nvcomp, algorithm, kinds[item_size])


def _nvcomp_peer(nvcomp: Any, algorithm: str, kind: str) -> Peer:
    def prepare(work: Work) -> Decoder:
        return _Nvcomp(work, nvcomp, algorithm, kind)

    return Peer(f"nvCOMP {algorithm} {kind[1:]}", prepare)


class _Nvcomp(Decoder):
    """Pieces as a batch, in nvCOMP's format with chunks of 64 KiB.

    Releases that do not take target memory allocate it in each round.
    """

    def __init__(self, work: Work, nvcomp: Any, algorithm: str, kind: str) -> None:
        work.set_source(work.tensors)
        self.contents, self._kind = work.tensors, kind
        handle = work.stream.handle
        self._codec = nvcomp.Codec(
            algorithm=algorithm,
            data_type=kind,
            device_id=work.device.ordinal,
            cuda_stream=handle,
        )
        sources = nvcomp.as_arrays(_views(work, work.source, kind), cuda_stream=handle)
        self._encoded = self._codec.encode(sources)
        work.stream.synchronize()
        self.encoded_nbytes = sum(self._encoded[i].buffer_size for i in range(len(self._encoded)))
        self._options: dict[str, Any] = {}
        if hasattr(self._codec, "decompression_config"):
            self._options = {
                "out": nvcomp.as_arrays(_views(work, work.out, kind), cuda_stream=handle),
                "decompression_config": self._codec.decompression_config(self._encoded),
            }

    def decode(self) -> None:
        """Decode all copies."""
        try:
            self._decoded = self._codec.decode(self._encoded, self._kind, **self._options)
        except TypeError:
            if not self._options:
                raise
            self._options = {}  # a release that lacks `out`, noticed in the untimed round
            self.decode()

    def check(self) -> None:
        """Find the addresses of the copies."""
        arrays = (self._decoded[i] for i in range(len(self._decoded)))
        self.addresses = [array.__cuda_array_interface__["data"][0] for array in arrays]

    def close(self) -> None:
        """Free the encoded and decoded copies."""
        self._encoded = self._decoded = self._options = None  # type: ignore[assignment]


def _dietgpu(dtype: str, item_size: int) -> Iterator[Peer]:
    importlib.import_module("dietgpu")  # adds operators to PyTorch
    import torch

    is_float = dtype in ("bfloat16", "float16", "float32")
    yield Peer(
        "DietGPU float" if is_float else "DietGPU ANS",
        lambda work: _DietGpu(work, torch, dtype if is_float else "uint8", is_float),
    )


class _DietGpu(Decoder):
    """Pieces as a batch of tensors, without checksums, as in DietGPU's benchmark."""

    def __init__(self, work: Work, torch: Any, dtype: str, is_float: bool) -> None:
        work.set_source(work.tensors)
        self.contents = work.tensors
        self._torch, self._work, self._is_float = torch, work, is_float
        device = f"cuda:{work.device.ordinal}"
        self._stream = torch.cuda.ExternalStream(work.stream.handle, device=device)

        def tensors(memory: Memory) -> list[Any]:
            views = _views(work, memory, "|u1")
            raw = (torch.as_tensor(view, device=device) for view in views)
            return [tensor.view(getattr(torch, dtype)) for tensor in raw]

        self._temporary = torch.empty(_DIETGPU_MEMORY, dtype=torch.uint8, device=device)
        self._out = tensors(work.out)
        with torch.cuda.stream(self._stream):
            encoded, sizes, _ = torch.ops.dietgpu.compress_data(
                is_float, tensors(work.source), False, self._temporary
            )
            self._encoded = [
                row.narrow(0, 0, size).clone()
                for row, size in zip(encoded, sizes.tolist(), strict=True)
            ]
        self.encoded_nbytes = sum(tensor.numel() for tensor in self._encoded)
        n = len(self._out)
        self._status = torch.zeros(n, dtype=torch.uint8, device=device)
        self._words = torch.zeros(n, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)

    def decode(self) -> None:
        """Decode all copies."""
        with self._torch.cuda.stream(self._stream):
            self._torch.ops.dietgpu.decompress_data(
                self._is_float,
                self._encoded,
                self._out,
                False,
                self._temporary,
                self._status,
                self._words,
            )

    def check(self) -> None:
        """Raise `DeviceError` unless all copies are decoded."""
        if not all(self._status.tolist()):
            raise DeviceError("DietGPU did not decode all tensors")

    def close(self) -> None:
        """Free the memory on the GPU."""
        self._encoded, self._out, self._temporary = [], [], None
