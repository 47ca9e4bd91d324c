"""Runs in object stores: new ones are made on the disk and uploaded, and steps are appended."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bf16codecs._base.threads import run_ahead
from bf16codecs._files.reading import disk_size
from bf16codecs.convert.new_remote import NewRemote
from bf16codecs.convert.runs.members import refuse_published
from bf16codecs.convert.summary import BytesDone
from bf16codecs.errors import CorruptDataError, StoreError
from bf16codecs.store.kinds import Kind
from bf16codecs.store.remote.lease import ROOT, without_note
from bf16codecs.store.remote.object_folder import Found, ObjectFolder
from bf16codecs.store.remote.object_run import ObjectRunWriter
from bf16codecs.store.remote.object_sink import open_unpublished
from bf16codecs.store.runs.reader import RunReader

__all__ = ["opened_remote", "run_at", "upload_run"]


def run_at(url: str, options: Mapping[str, Any] | None) -> tuple[ObjectFolder, Found] | None:
    """Return the folder at an address, and its root's document; None if no store is there."""
    folder = ObjectFolder(url, options or {})
    root = folder.read(ROOT)
    if root is None or without_note(root.data) is None:
        return None
    return folder, root


@contextmanager
def opened_remote(
    folder: ObjectFolder, root: Found, verb: str
) -> Iterator[tuple[ObjectRunWriter, RunReader, Kind]]:
    """Open a run to append to it; `verb` is for messages.

    Raises StoreError if it is not a run; BlockingIOError if another process is changing it.
    """
    document = without_note(root.data)
    assert document is not None
    with closing(open_unpublished(folder, document)) as reader:
        if reader.info.run is None:
            raise StoreError(f"{folder.where}: one model, not a run: nothing to {verb}")
        refuse_published(reader)
        with closing(ObjectRunWriter(folder, root)) as writer:
            yield writer, RunReader(reader), Kind.FOLDER


def upload_run(path: Path, new: NewRemote, verify: bool, progress: BytesDone | None) -> int:
    """Upload a run that is in a folder; return its size."""
    names = [
        Path(folder, name).relative_to(path).as_posix()
        for folder, _, files in os.walk(path)
        for name in files
    ]
    new.lease.declare({key.rpartition("/")[0] for key in names if not key.endswith(ROOT)})
    jobs = (partial(_upload, new, path / key, key, verify) for key in sorted(names))
    total, done = disk_size(path), 0
    with closing(run_ahead(jobs, new.sink.concurrency)) as sizes:
        for size in sizes:
            done += size
            if progress is not None:
                progress(done, max(done, total))
    return done


def _upload(new: NewRemote, file: Path, key: str, verify: bool) -> int:
    content = file.read_bytes()
    new.sink.put(key, content)
    if verify and key != ROOT:
        found = new.folder.read(key, limited=False)
        if found is None or found.data != content:
            raise CorruptDataError(f"{new.folder.where}/{key}: what was read back differs")
    return len(content)
