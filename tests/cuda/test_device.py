"""The device layer, on a GPU or its stand-in."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from bf16codecs.cuda.compiling import compile_source
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.nvidia import call
from bf16codecs.cuda.nvidia import driver as cuda
from bf16codecs.cuda.sources import read_sources
from bf16codecs.cuda.streams import Stream
from bf16codecs.errors import DeviceError
from cuda_driver import CAPABILITY, SOURCES

pytestmark = pytest.mark.slow


@pytest.fixture
def device(gpu, monkeypatch) -> Device:
    """Return a GPU with the tests' own kernels."""
    sources = read_sources("test_kernels.cu", SOURCES)
    monkeypatch.setattr("bf16codecs.cuda.device.compiled", lambda _, c: compile_source(c, sources))
    return Device(0)


def to_device(device: Device, stream: Stream, values: np.ndarray):
    memory = device.allocate(values.nbytes)
    stream.copy(memory.address, values.ctypes.data, values.nbytes)
    return memory


def from_device(stream: Stream, address: int, nbytes: int) -> np.ndarray:
    values = np.zeros(nbytes, np.uint8)
    stream.copy(values.ctypes.data, address, nbytes)
    stream.synchronize()
    return values


def test_what_it_is(device: Device, gpu) -> None:
    assert device.name
    assert device.compute_capability >= (5, 0)
    assert device.multiprocessors > 0
    assert 0 < device.room.free <= device.room.total
    assert Device.of(0) is Device.of(0)
    if gpu is not None:
        assert device.compute_capability == CAPABILITY


def test_memory_is_aligned_and_goes_back(device: Device, gpu) -> None:
    memory = [device.allocate(1000 + i) for i in range(3)]
    assert [m.address % 256 for m in memory] == [0, 0, 0]
    assert len({m.address for m in memory}) == 3
    assert memory[1].nbytes == 1001
    memory[0].close()
    memory[0].close()
    assert memory[0].address == 0
    del memory
    gc.collect()
    if gpu is not None:
        assert gpu.live("blocks") == 0


def test_nothing_is_allocated_for_nothing(device: Device) -> None:
    assert device.allocate(0).address == 0
    assert device.pinned(0).array.shape == (0,)
    device.stream().copy(0, 0, 0)


def test_pinned_memory_lives_as_long_as_its_arrays(device: Device, gpu) -> None:
    pinned = device.pinned(100)
    assert pinned.address == pinned.array.ctypes.data
    pinned.array[:] = range(100)
    part = pinned.array[10:20].view(np.uint16)
    del pinned
    gc.collect()
    assert part.view(np.uint8).tolist() == list(range(10, 20))
    if gpu is not None:
        assert gpu.live("blocks") == 1


@pytest.mark.parametrize("is_pinned", [False, True])
def test_copies(device: Device, is_pinned: bool) -> None:
    stream = device.stream()
    values = np.arange(1000, dtype=np.uint8)
    if is_pinned:
        pinned = device.pinned(1000)
        pinned.array[:] = values
        values = pinned.array
    there, back = to_device(device, stream, values), device.pinned(1000)
    other = device.allocate(1000)
    stream.copy(other.address, there.address, 1000)
    stream.fill(other.address + 10, 7, 5)
    stream.copy(back.address, other.address, 1000)
    stream.synchronize()
    expected = np.arange(1000, dtype=np.uint8)
    expected[10:15] = 7
    assert back.array.tobytes() == expected.tobytes()


def test_kernels_run(device: Device) -> None:
    stream = device.stream()
    values = np.arange(777, dtype=np.uint8)
    there, copied = to_device(device, stream, values), device.allocate(777)
    stream.fill(copied.address, 0, 777)
    device.launch("copy_bytes", 25, stream, there.address, copied.address, np.uint32(777))
    assert from_device(stream, copied.address, 777).tobytes() == values.tobytes()


def test_each_warp_is_a_block(device: Device) -> None:
    stream = device.stream()
    count = to_device(device, stream, np.zeros(1, np.uint32))
    device.launch("count_warps", 10, stream, count.address)
    assert from_device(stream, count.address, 4).view(np.uint32) == 10


def test_results_are_there_when_somebody_waited(device: Device, stand_in) -> None:
    """As on a GPU, a copy to pinned memory is done some time later."""
    stream = device.stream()
    there = to_device(device, stream, np.full(4, 9, np.uint8))
    back = device.pinned(4)
    back.array[:] = 0
    stream.copy(back.address, there.address, 4)
    event = stream.record()
    assert not back.array.any()
    event.synchronize()
    assert back.array.tolist() == [9] * 4


def test_events_have_times(device: Device, gpu) -> None:
    stream = device.stream()
    memory = device.allocate(1 << 20)
    begin = stream.record(timed=True)
    stream.fill(memory.address, 3, 1 << 20)
    end = stream.record(timed=True)
    if gpu is not None:  # which does nothing until somebody waits
        with pytest.raises(DeviceError, match="the time between two events"):
            end.seconds_since(begin)
    end.synchronize()
    assert 0 < end.seconds_since(begin) < 60
    untimed = stream.record()
    untimed.synchronize()
    with pytest.raises(DeviceError, match="the time between two events"):
        untimed.seconds_since(begin)


def test_what_kernels_take(device: Device, gpu) -> None:
    needs = device.needs("copy_bytes")
    assert needs.local == 0
    if gpu is None:
        assert needs.registers > 0
    with pytest.raises(DeviceError):
        device.needs("no_such_kernel")


def test_streams_of_others(device: Device) -> None:
    own = device.stream()
    memory = device.allocate(8)
    for value, address in enumerate([0, 1, 2, own.handle]):
        stream = device.stream_of(address)
        assert stream.handle == address
        stream.fill(memory.address, value, 8)
        assert set(from_device(stream, memory.address, 8).tolist()) == {value}


def test_several_threads(device: Device) -> None:
    results: list[bool] = []

    def work(value: int) -> None:
        stream = device.stream()
        source = to_device(device, stream, np.full(5000, value, np.uint8))
        out = device.allocate(5000)
        for _ in range(20):
            stream.fill(out.address, 0, 5000)
            arguments = source.address, out.address, np.uint32(5000)
            device.launch("copy_bytes", 160, stream, *arguments)
            results.append(set(from_device(stream, out.address, 5000).tolist()) == {value})

    threads = [threading.Thread(target=work, args=(i + 1,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


def test_memory_outlives_the_thread_that_asked_first(gpu) -> None:
    """cuda-core lets go of a device's context with the last thread that has used it."""
    made = []
    thread = threading.Thread(target=lambda: made.append(Device(0).allocate(100)))
    thread.start()
    thread.join()
    gc.collect()
    stream = Device(0).stream()
    stream.fill(made[0].address, 1, 100)
    stream.synchronize()


def test_the_current_device_stays(stand_in) -> None:
    first, second = Device(0), Device(1)
    with first.current():
        before = int(cuda.cuCtxGetCurrent()[1])
        memory = second.allocate(10)
        second.stream().fill(memory.address, 0, 10)
        assert int(cuda.cuCtxGetCurrent()[1]) == before
    assert int(cuda.cuCtxGetCurrent()[1]) == 0
    memory.close()


def test_arguments_are_checked(device: Device) -> None:
    stream = device.stream()
    with pytest.raises(TypeError, match=r"copy_bytes takes arguments of \(8, 8, 4\) bytes"):
        device.launch("copy_bytes", 1, stream, 0, 0, 0)
    with pytest.raises(TypeError, match="count_warps"):
        device.launch("count_warps", 1, stream)
    with pytest.raises(DeviceError, match=r"no_such_kernel: CUDA_ERROR_NOT_FOUND \(.*\)$"):
        device.launch("no_such_kernel", 1, stream)


def test_no_such_gpu(gpu) -> None:
    with pytest.raises(DeviceError, match="GPU 99 does not exist: found "):
        Device.of(99)
    with pytest.raises(DeviceError, match="GPU -1 does not exist"):
        Device(-1)


def test_other_processes_fill_a_gpu(stand_in) -> None:
    stand_in.fail("cuDevicePrimaryCtxRetain")
    with pytest.raises(
        DeviceError, match=r"^GPU 1 \(.*\) has no room for another process: nvidia-"
    ):
        Device(1)


def test_no_room(device: Device, gpu) -> None:
    with pytest.raises(MemoryError, match=r"has no 1,125,899,906,842,624 bytes .* are free"):
        device.allocate(1 << 50)
    if gpu is not None:
        gpu.set_memory(1008)
        memory = device.allocate(1000)  # and the difference that quads have
        with pytest.raises(MemoryError, match=r"has no 1 bytes in one piece: 0 of 1,008 are free"):
            device.allocate(1)
        memory.close()
        assert device.allocate(1000).address


def test_out_of_memory_is_reported_everywhere(device: Device, stand_in) -> None:
    stream = device.stream()
    stand_in.fail("cuMemHostAlloc")
    with pytest.raises(MemoryError, match=r"^the host cannot lock 1,000 bytes"):
        device.pinned(1000)
    stand_in.fail("cuStreamCreate")
    with pytest.raises(MemoryError):
        device.stream()
    stand_in.fail("cuLaunchKernel")
    with pytest.raises(MemoryError, match="count_warps"):
        device.launch("count_warps", 1, stream, 0)
    stand_in.fail("cuMemAlloc", n=2)
    first = device.allocate(10)
    with pytest.raises(MemoryError):
        device.allocate(10)
    assert device.allocate(10).address != first.address


def test_a_lost_gpu_is_reported_once(device: Device, stand_in) -> None:
    """The waiting call reports it; freeing memory does not."""
    stream, memory = device.stream(), device.allocate(10)
    stand_in.fail("cuStreamSynchronize", result=700)
    with pytest.raises(DeviceError, match="the GPU's work: CUDA_ERROR_ILLEGAL_ADDRESS"):
        stream.synchronize()
    address = memory.address
    stand_in.fail("cuMemFree", result=700)
    memory.close()
    assert memory.address == 0
    with device.current():
        call(cuda.cuMemFree, address)


def test_misuse_is_found_out(device: Device, stand_in) -> None:
    stream = device.stream()
    memory = device.allocate(112)
    for copy in [
        (memory.address + 1, memory.address, 112),
        (memory.address, memory.address + 1, 112),
    ]:
        with pytest.raises(DeviceError):
            stream.copy(*copy)
        assert "out of a block" in stand_in.misuse()
    with pytest.raises(DeviceError):
        Device(1).stream_of(stream.handle).fill(memory.address, 0, 1)
    assert "another context" in stand_in.misuse()
    values = np.zeros(200, np.uint8)
    there = to_device(device, stream, values)
    device.launch("copy_bytes", 7, stream, there.address, memory.address, np.uint32(113))
    stream.synchronize()
    memory.close()
    assert "behind a block" in stand_in.misuse()
    memory = device.allocate(112)
    stream.fill(memory.address, 0, 112)
    memory.close()
    assert "still to be written" in stand_in.misuse()
