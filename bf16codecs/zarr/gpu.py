"""Decode frames in zarr's GPU buffers, which are CuPy arrays, on their GPU.

CuPy orders its work by streams, and each thread has its own. zarr copies chunks on the stream of
the thread that calls the codec, so only that thread may touch the arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.heads import head_bytes
from bf16codecs.cuda.found import found_gpu, gpu_only_failure

if TYPE_CHECKING:
    from zarr.core.buffer import Buffer

__all__ = ["decoded_on_gpu"]


def decoded_on_gpu(
    chunk: Buffer,
    label: str,
    largest: int,
    is_expected: Callable[[int], bool],
    decode: Callable[[NDArray[np.uint8]], Any],
) -> Any:
    """Decode a chunk, which is a frame, on the GPU on which it lies, in the calling thread.

    Parameters
    ----------
    chunk
        The stored chunk.
    label
        Its name in messages.
    largest
        Largest size of the decoded chunk, in bytes.
    is_expected
        Checks the decoded size, in bytes.
    decode
        Decodes the chunk on the host.

    Returns
    -------
    cupy.ndarray or None
        The decoded bytes. None if the chunk is not on a GPU, or the host has to decode it.

    Raises
    ------
    CodecError
        If `decode` finds the chunk damaged.
    DeviceError
        If the GPU fails, or finds the chunk damaged when `decode` does not.
    """
    frame: Any = chunk.as_array_like()
    cupy: Any = sys.modules.get("cupy")  # imported if any array is CuPy's
    if isinstance(frame, np.ndarray) or cupy is None or not isinstance(frame, cupy.ndarray):
        return None
    gpu = found_gpu(frame.device.id, "chunks")
    if gpu is None:
        return None
    from bf16codecs.cuda.decoding import FrameOnGpu, Outcome

    def allocate(nbytes: int) -> tuple[int, Any]:
        memory = cupy.empty(nbytes, np.uint8)
        return int(memory.data.ptr), memory

    with frame.device:
        stream = gpu.stream_of(int(cupy.cuda.get_current_stream().ptr))
        on_gpu = FrameOnGpu(gpu, stream, int(frame.data.ptr), int(frame.size), allocate)
        index = on_gpu.index(head_bytes(largest))
        if index is None or not is_expected(index.raw_size):
            return None
        out = cupy.empty(index.raw_size, np.uint8)
        outcome = on_gpu.decode(index, int(out.data.ptr))
    if outcome is Outcome.DAMAGED:
        decode(chunk.as_numpy_array())
        raise gpu_only_failure(label, gpu)
    return out if outcome is Outcome.DONE else None
