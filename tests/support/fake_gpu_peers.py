"""Stand-ins for other packages' GPU decoders, after their documentation, on the driver's stand-in.

They only copy, once all is done that the GPU was told before. The stand-in's memory is that of this
process: tests look at what is asked of them, and no more.
"""

from __future__ import annotations

import contextlib
import ctypes
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs.cuda.device import Device
from bf16codecs.cuda.nvidia import call, driver


def wait() -> None:
    """Wait for all that the GPU does."""
    with Device.of(0).current():
        call(driver.cuCtxSynchronize)


def memory_of(shown: Any) -> NDArray[np.uint8]:
    """Return the memory that an object exposes as a GPU's."""
    interface = shown.__cuda_array_interface__
    nbytes = interface["shape"][0] * int(interface["typestr"][2:])
    content = (ctypes.c_uint8 * nbytes).from_address(interface["data"][0])
    return np.frombuffer(content, np.uint8)


class Array:
    """nvCOMP's: it shows memory of the GPU, its own or not."""

    def __init__(self, content: NDArray[np.uint8]) -> None:
        self.content = content
        self.buffer_size = content.size
        self.__cuda_array_interface__ = {
            "data": (content.ctypes.data, False),
            "shape": (content.size,),
            "typestr": "|u1",
            "version": 3,
        }


def nvcomp(has_configs: bool, damages: bool = False) -> ModuleType:
    """Return nvCOMP's module, of a release that takes memory to decode to or not."""
    module = ModuleType("nvidia.nvcomp")
    module.made = []

    class Codec:
        def __init__(self, **options: Any) -> None:
            module.made.append(options)
            if has_configs:
                self.decompression_config = lambda encoded: len(encoded)

        def encode(self, arrays: list[Array]) -> list[Array]:
            return [Array(np.append(array.content, np.uint8(0))) for array in arrays]

        def decode(self, encoded: list[Array], data_type: str = "", **options: Any) -> Any:
            wait()
            assert data_type == module.made[-1]["data_type"]
            contents = [array.content[:-1].copy() for array in encoded]
            if damages:
                contents[-1][-1] ^= 1
            if not has_configs:
                assert not options
                return [Array(content) for content in contents]
            assert options["decompression_config"] == len(encoded)
            for array, content in zip(options["out"], contents, strict=True):
                array.content[:] = content
            return options["out"]

    def as_arrays(sources: list[Any], cuda_stream: int = 0) -> list[Array]:
        assert cuda_stream
        return [Array(memory_of(source)) for source in sources]

    module.Codec, module.as_arrays = Codec, as_arrays
    return module


class Tensor:
    """PyTorch's, of one dimension."""

    def __init__(self, content: NDArray[Any]) -> None:
        self.content = content

    def view(self, dtype: str) -> Tensor:
        return Tensor(self.content.view(dtype))

    def narrow(self, axis: int, start: int, size: int) -> Tensor:
        return Tensor(self.content[start : start + size])

    def clone(self) -> Tensor:
        return Tensor(self.content.copy())

    def numel(self) -> int:
        return self.content.size

    def tolist(self) -> list[Any]:
        return self.content.tolist()


def torch_with_dietgpu() -> ModuleType:
    """Return PyTorch with the operators that DietGPU adds, of which compressing adds two bytes."""
    module = ModuleType("torch")

    def compress(is_float: bool, tensors: list[Tensor], checksum: bool, memory: Tensor) -> Any:
        assert not checksum
        assert memory.numel()
        rows = [np.append(t.content.view("u1"), np.zeros(9, "u1")) for t in tensors]
        sizes = [t.content.nbytes + 2 for t in tensors]
        return [Tensor(row) for row in rows], Tensor(np.array(sizes)), 0

    def decompress(
        is_float: bool,
        encoded: list[Tensor],
        out: list[Tensor],
        checksum: bool,
        memory: Tensor,
        status: Tensor,
        words: Tensor,
    ) -> int:
        wait()
        for part, to in zip(encoded, out, strict=True):
            to.content.view("u1")[:] = part.content[:-2]
        status.content[:] = 1
        words.content[:] = [to.numel() for to in out]
        return 0

    def made(size: int, dtype: str, device: str) -> Tensor:
        assert device == "cuda:0"
        return Tensor(np.zeros(size, dtype))

    module.bfloat16, module.uint8, module.int32 = "bfloat16", "uint8", "int32"
    module.as_tensor = lambda shown, device: Tensor(memory_of(shown))
    module.empty = module.zeros = made
    module.cuda = SimpleNamespace(
        ExternalStream=lambda handle, device: handle,
        stream=lambda stream: contextlib.nullcontext(),
        synchronize=lambda device: None,
        is_available=lambda: False,
    )
    operators = SimpleNamespace(compress_data=compress, decompress_data=decompress)
    module.ops = SimpleNamespace(dietgpu=operators)
    return module
