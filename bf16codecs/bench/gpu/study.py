"""Measure tables of contenders on a GPU, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import gettempdir

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.messages import one_line
from bf16codecs.bench.contenders import MEMCPY
from bf16codecs.bench.data import Sample
from bf16codecs.bench.gpu.decoders import Decoder, FrameDecoder, encoded
from bf16codecs.bench.gpu.loading import (
    FILE,
    STORES,
    TORCH_FILE,
    TORCH_STORE,
    CopiedModel,
    ModelLoader,
    loaders,
    torch_with_cuda,
)
from bf16codecs.bench.gpu.peers import gpu_peers
from bf16codecs.bench.gpu.results import GpuResult, Unmeasured, result_of
from bf16codecs.bench.gpu.sending import RawSender, Sender
from bf16codecs.bench.gpu.variants import OnHostError, Variant, planes_of, variants
from bf16codecs.bench.gpu.work import Work
from bf16codecs.bench.study import begins_like
from bf16codecs.cuda.device import Device
from bf16codecs.errors import DeviceError

__all__ = ["DECODE", "LOAD", "RAW", "SEND", "TABLES", "GpuStudy"]

#: Names of the tables in results.
DECODE, SEND, LOAD = "decode", "send", "load"
TABLES = (DECODE, SEND, LOAD)
#: Reference of the second table.
RAW = "raw"

# Limit for the host's memory, and for temporary files on the disk.
_HOST_BYTES = 1 << 30

Found = GpuResult | Unmeasured
Progress = Callable[[str], None] | None


@dataclass(frozen=True)
class GpuStudy:
    """Contenders on a GPU, and their data.

    Attributes
    ----------
    device : Device
        The GPU.
    sample : Sample
        The tensors.
    nbytes : int
        Size up to which the tensors are copied; on the host, 1 GiB at most.
    repeats : int
        Number of rounds.
    only : sequence of str
        Prefixes of words: measure the references, and contenders with a word that begins like one
        of these; all if empty.
    """

    device: Device
    sample: Sample
    nbytes: int
    repeats: int
    only: Sequence[str] = ()

    def names(self, table: str) -> list[str]:
        """Return the names of a table's contenders that can be measured.

        Parameters
        ----------
        table
            Name of the table.
        """
        codecs = [variant.name for variant in variants(self.sample.dtype)]
        if table == DECODE:
            peers, _ = gpu_peers(self.sample.dtype, self.sample.item_size)
            return self._chosen(MEMCPY, [*codecs, *(peer.name for peer in peers)])
        if table == SEND:
            return self._chosen(RAW, codecs)
        with_torch = torch_with_cuda() is not None
        torch_names = self._chosen(TORCH_FILE, [TORCH_STORE]) if with_torch else []
        return [*self._chosen(FILE, list(STORES.values())), *torch_names]

    def wanted(self) -> list[str]:
        """Return the names of all tables' contenders."""
        return list(dict.fromkeys(name for table in TABLES for name in self.names(table)))

    def absent(self) -> list[Unmeasured]:
        """Return the requested peers that cannot be measured."""
        _, absent = gpu_peers(self.sample.dtype, self.sample.item_size)
        return [Unmeasured(DECODE, *peer, False) for peer in absent if self._is_wanted(peer.name)]

    def _chosen(self, reference: str, others: list[str]) -> list[str]:
        """Return the requested names with their reference; empty if neither is requested."""
        names = [name for name in others if self._is_wanted(name)]
        return [reference, *names] if names or self._is_wanted(reference) else []

    @contextmanager
    def tables(
        self, progress: Progress = None
    ) -> Iterator[dict[str, Callable[[], Iterator[Found]]]]:
        """Copy the tensors to the GPU; yield a function for each table that measures it.

        Parameters
        ----------
        progress
            Called with each contender's name before measuring.

        Raises
        ------
        DeviceError
            If they do not fit into the memory of the GPU or the host.
        """
        try:
            work = Work(self.device, self.sample, self.nbytes)
        except MemoryError as e:
            size = for_caller("nbytes", "--size")
            raise DeviceError(f"{e}; a smaller {size} may fit") from None
        with work:
            measure = {
                DECODE: lambda: self._decoded(work, progress),
                SEND: lambda: self._sent(work, progress),
                LOAD: lambda: self._loaded(work, progress),
            }
            yield {table: measure[table] for table in TABLES if self.names(table)}

    def _is_wanted(self, name: str) -> bool:
        return not self.only or begins_like(name, self.only)

    def _variants(self) -> list[Variant]:
        return [v for v in variants(self.sample.dtype) if self._is_wanted(v.name)]

    def _decoded(self, work: Work, progress: Progress) -> Iterator[Found]:
        yield _measured(DECODE, MEMCPY, progress, lambda: self._copied(work))
        peers, _ = gpu_peers(self.sample.dtype, self.sample.item_size)
        contenders = [(v.name, _frames_decoder(v)) for v in self._variants()]
        contenders += [(p.name, p.prepare) for p in peers if self._is_wanted(p.name)]
        for name, prepare in contenders:
            yield _measured(DECODE, name, progress, partial(self._timed, work, name, prepare))
        yield from self.absent()

    def _copied(self, work: Work) -> GpuResult:
        work.set_source(work.tensors)
        work.spoil()
        work.copy()
        is_exact = work.holds(work.tensors)
        seconds = [work.timed(work.copy) for _ in range(self.repeats)]
        return result_of(DECODE, MEMCPY, work.nbytes, work.nbytes, seconds, seconds, is_exact)

    def _timed(self, work: Work, name: str, prepare: Callable[[Work], Decoder]) -> GpuResult:
        decoder = prepare(work)
        try:
            work.spoil()
            decoder.reset()
            decoder.decode()
            work.stream.synchronize()
            decoder.check()
            is_exact = work.holds(decoder.contents, addresses=decoder.addresses)
            copying, seconds = [], []
            for _ in range(self.repeats):
                copying.append(work.timed(work.copy))
                decoder.reset()
                seconds.append(work.timed(decoder.decode))
                decoder.check()
            is_exact &= work.holds(decoder.contents, addresses=decoder.addresses)
        finally:
            work.stream.synchronize()
            decoder.close()
        size, planes = decoder.encoded_nbytes, decoder.planes
        return result_of(DECODE, name, work.nbytes, size, seconds, copying, is_exact, planes)

    def _sent(self, work: Work, progress: Progress) -> Iterator[Found]:
        with ExitStack() as stack:
            try:
                raw = stack.enter_context(RawSender(work, _HOST_BYTES))
            except Exception as e:
                yield Unmeasured(SEND, RAW, one_line(e), True)
                return
            yield _measured(SEND, RAW, progress, lambda: self._sent_raw(work, raw))
            for variant in self._variants():
                measure = partial(self._sent_frames, work, raw, variant)
                yield _measured(SEND, variant.name, progress, measure)

    def _sent_raw(self, work: Work, raw: RawSender) -> GpuResult:
        work.spoil()
        raw.send()
        is_exact = work.holds(work.tensors, raw.copies)
        seconds = [raw.send() for _ in range(self.repeats)]
        return result_of(SEND, RAW, raw.nbytes, raw.nbytes, seconds, seconds, is_exact)

    def _sent_frames(self, work: Work, raw: RawSender, variant: Variant) -> GpuResult:
        frames = encoded(work, variant)
        with Sender(work, frames, raw.copies) as sender:
            work.spoil()
            sender.send()
            sender.check()
            is_exact = work.holds([frame.content for frame in frames], raw.copies)
            raws, seconds = [], []
            for _ in range(self.repeats):
                raws.append(raw.send())
                seconds.append(sender.send())
                sender.check()
        size = sender.encoded_nbytes
        return result_of(
            SEND, variant.name, raw.nbytes, size, seconds, raws, is_exact, planes_of(frames)
        )

    def _loaded(self, work: Work, progress: Progress) -> Iterator[Found]:
        model = CopiedModel(work, _HOST_BYTES)
        if progress is not None:
            progress("stores")
        with ExitStack() as stack:
            try:
                ways = stack.enter_context(loaders(work, model))
            except Exception as e:
                advice = f"the files are in {gettempdir()}; set TMPDIR to use another folder"
                yield Unmeasured(LOAD, "stores", f"{one_line(e)}; {advice}", True)
                return
            by_name = {loader.name: loader for loader in ways}
            for loader in (by_name[name] for name in self.names(LOAD)):
                reference = by_name[loader.reference]
                measure = partial(self._timed_loads, work, model, loader, reference)
                yield _measured(LOAD, loader.name, progress, measure)
        if torch_with_cuda() is None and not self.only:
            yield Unmeasured(LOAD, TORCH_FILE, "PyTorch with CUDA is not installed", False)

    def _timed_loads(
        self, work: Work, model: CopiedModel, loader: ModelLoader, reference: ModelLoader
    ) -> GpuResult:
        work.spoil()
        addresses = loader.load()
        is_exact = work.holds(model, model.copies, addresses)
        others, seconds = [], []
        for _ in range(self.repeats):
            if loader is not reference:
                others.append(reference.seconds())
            seconds.append(loader.seconds())
        nbytes = sum(copy.nbytes for copy in model.copies)
        return result_of(
            LOAD, loader.name, nbytes, loader.nbytes, seconds, others or seconds, is_exact
        )


def _frames_decoder(variant: Variant) -> Callable[[Work], Decoder]:
    return lambda work: FrameDecoder(work, encoded(work, variant))


def _measured(table: str, name: str, progress: Progress, measure: Callable[[], GpuResult]) -> Found:
    """Measure a contender; one that fails does not stop the others."""
    _interrupt.check()
    if progress is not None:
        progress(name)
    try:
        return measure()
    except OnHostError as e:
        return Unmeasured(table, name, str(e), False)
    except Exception as e:
        return Unmeasured(table, name, one_line(e), True)
