"""zarr's buffers on a GPU, which are CuPy's arrays: frames in them are decoded there.

CuPy's work is in the order of a stream, which each thread has its own of. What zarr gives to a
codec is on that of the thread that calls the codec: all that touches CuPy's arrays stays there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.heads import head_bytes
from bf16codecs.cuda.found import found_gpu, only_there

if TYPE_CHECKING:
    from zarr.core.buffer import Buffer

__all__ = ["decoded_there"]


def decoded_there(
    chunk: Buffer,
    label: str,
    most: int,
    is_expected: Callable[[int], bool],
    decode: Callable[[NDArray[np.uint8]], Any],
) -> Any:
    """Decode a chunk that is a frame on the GPU on which it is, in the calling thread.

    Parameters
    ----------
    chunk
        The chunk as it is stored.
    label
        What messages call it.
    most
        Its size at most, once it is decoded.
    is_expected
        Tells whether it may have that size.
    decode
        Decodes it on the host.

    Returns
    -------
    cupy.ndarray or None
        Bytes. None if it is not on a GPU, or is to be decoded on the host.

    Raises
    ------
    CodecError
        If it is damaged, as `decode` says.
    DeviceError
        If the GPU fails, or finds it damaged, and the host does not.
    """
    frame: Any = chunk.as_array_like()
    cupy: Any = sys.modules.get("cupy")  # whoever has an array has imported it
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
        there = FrameOnGpu(gpu, stream, int(frame.data.ptr), int(frame.size), allocate)
        index = there.index(head_bytes(most))
        if index is None or not is_expected(index.raw_size):
            return None
        out = cupy.empty(index.raw_size, np.uint8)
        outcome = there.decode(index, int(out.data.ptr))
    if outcome is Outcome.DAMAGED:
        decode(chunk.as_numpy_array())
        raise only_there(label, gpu)
    return out if outcome is Outcome.DONE else None
