"""Pack a run in a folder into one file, ZIP or HDF5."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from bf16codecs._arrays.grid import chunk_counts, grid_indices
from bf16codecs.convert.runs.plan import stored_array
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.opening import open_run_store
from bf16codecs.store.plan import plan_bytes
from bf16codecs.store.zarr.metadata import chunk_key
from bf16codecs.store.zarr.sinks import ZipSink

__all__ = ["pack_hdf5", "pack_zip"]


def pack_zip(folder: Path, target: Path) -> None:
    """Write a folder's files as the uncompressed members of a ZIP file."""
    with closing(ZipSink(target)) as sink:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            # Mapped, not read: a chunk may have thousands of steps.
            sink.put(path.relative_to(folder).as_posix(), np.memmap(path, np.uint8, "r"))


def pack_hdf5(folder: Path, target: Path, choice: CodecChoice) -> None:
    """Copy the arrays of a run in a folder to an HDF5 file, with the same encoded chunks."""
    # Imported here: h5py is slow to import.
    from bf16codecs.store.hdf5.append import Hdf5RunWriter

    with (
        closing(open_run_store(folder)) as run,
        closing(Hdf5RunWriter(target, durable=False)) as writer,
    ):
        key = chunk_key(run.stored.zarr_format)
        for path in run.run.arrays:
            array = stored_array(run, path, choice)
            writer.create(array)
            for index in grid_indices(chunk_counts(array.shape, array.chunks)):
                chunk = folder / path / key(index)
                if chunk.exists():  # groups without the tensor have no chunk
                    writer.put(array, index, chunk.read_bytes())
        files = [f for s in run.run.steps for f in (*s.files, s.index) if f is not None]
        for path in dict.fromkeys(file.path for file in files):
            raw = run.store.text(path)
            writer.write_bytes(plan_bytes(path, len(raw), len(raw)), raw)
        writer.write_steps(run.run.numbers)
        writer.finish(StoreInfo((), None, {}, run=run.run))
