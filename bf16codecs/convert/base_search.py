"""Choose the best base for a model among those of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bf16codecs._base.messages import counted, few, one_line
from bf16codecs._base.paths import given_path, require_path, resolved
from bf16codecs._base.threads import run_ahead
from bf16codecs.convert.options import AUTO
from bf16codecs.convert.samples import Sample, coded_nbytes, take_samples
from bf16codecs.convert.sketches import Sketch, sketch_of
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.bases import chain_of, identity
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.kinds import (
    OBJECT_SCHEMES,
    Kind,
    address_scheme,
    detect,
    path_of,
    plain_address,
    suffix_of,
)
from bf16codecs.store.opening import Opening, open_any, open_either
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.reader import RunReader
from bf16codecs.store.zarr.metadata import NoGroupError

__all__ = ["pick_base"]

# Least saving of differences, by the sample, that justifies depending on another model.
_LEAST_GAIN = 0.02
# Models in a message, of those that were tried.
_SHOWN = 5
# Of more models, the search tries those whose sketches are nearest.
_MOST_TRIED = 8
# At an address, sketches are read with so many models open: each waits for a dozen requests.
_REQUESTS = 16


def pick_base(
    folder: str,
    source: ModelReader | None,
    target: Path | str,
    choice: CodecChoice,
    options: Mapping[str, Any] | None = None,
) -> tuple[str | None, str]:
    """Return the best base in a folder, None if it saves too little, and a line that says why.

    The folder is on a disk, or at an address in an object store, which has `options`. Raises
    StoreError if it has no model; ValueError for another address.
    """
    given_path(folder, "folder of bases")
    found = _Search(target, choice, options)
    if path_of(folder) is None:
        candidates = _candidates_at(folder, source, target, options)
    else:
        candidates = [
            path for path in _candidates_in(folder, source, target) if found.has_model(path)
        ]
    samples = [] if source is None else take_samples(source)
    if len(candidates) > _MOST_TRIED and source is not None:
        candidates = found.nearest(candidates, sketch_of(source))
    for candidate in candidates:
        found.sample(candidate, samples)
    sizes, depending, unread = found.sizes, found.depending, found.unread
    if not sizes and not depending:
        reason = f": {next(iter(unread.values()))}" if unread else ""
        raise StoreError(f"{AUTO}{folder}: no model in this folder can be the base{reason}")
    fitting = sorted((size, candidate) for size, candidate in sizes if size is not None)
    best, text = _best(fitting, samples, coded_nbytes(samples, choice) or 0)
    if not fitting:
        strangers = f"none of {counted(len(sizes), 'model')} in {folder} has a tensor in common"
        text = f"no base: {strangers if sizes else f'no other model is in {folder}'}"
    if depending:
        shown = few(depending, _SHOWN)
        text += f"; left out, since their base is {os.path.basename(target)}: {shown}"
    if unread:
        why = next(iter(unread.values()))
        text += f"; could not be read: {few(list(unread), _SHOWN)} ({why})"
    return best, text


def _candidates_in(folder: str, source: ModelReader | None, target: Path | str) -> list[str]:
    """Return the paths in a local folder, except those of the source and the target."""
    require_path(folder)
    used = [] if source is None else list(source.paths)
    excluded = {resolved(path) for path in (*used, *([target] if isinstance(target, Path) else []))}
    # A folder of shards is the source as well.
    excluded |= {parent for path in excluded for parent in path.parents}
    paths = sorted(Path(folder).iterdir())
    return [str(path) for path in paths if path.name[0] != "." and resolved(path) not in excluded]


def _candidates_at(
    folder: str, source: ModelReader | None, target: Path | str, options: Mapping[str, Any] | None
) -> list[str]:
    """Return the addresses of stores and files of models in a folder of an object store."""
    if "::" in folder or address_scheme(folder) not in OBJECT_SCHEMES:
        raise ValueError(
            f"{AUTO}{folder}: only local folders, and folders of object stores (s3://, gs://,"
            " az://), are searched for a base"
        )
    # Imported only for addresses: obstore.
    from bf16codecs.store.remote.object_folder import ObjectFolder

    address = plain_address(folder).rstrip("/")
    names = ObjectFolder(address, options or {}).names()
    found = [f"{address}/{n.rstrip('/')}" for n in names if n.endswith("/") or suffix_of(n)[1]]
    excluded = {str(target), "" if source is None else source.where.rstrip("/")}
    return [each for each in found if each not in excluded]


def _best(
    found: list[tuple[int, str]], samples: list[Sample], alone: int
) -> tuple[str | None, str]:
    """Return the first of bases, ordered by size, if it saves enough, and a line about them."""
    values = sum(sample.data.size // np.dtype(sample.dtype).itemsize for sample in samples)
    bits = 8 / max(1, values)
    listed = ", ".join(
        f"{os.path.basename(each)} {size * bits:.2f}" for size, each in found[:_SHOWN]
    )
    text = f"by a sample: {alone * bits:.2f} bits per value alone, as a difference to {listed}"
    if not found or found[0][0] > (1 - _LEAST_GAIN) * alone:
        return None, f"no base is worth it, {text}"
    return found[0][1], text


class _Search:
    """The models of a folder that were looked at, as bases for a store at `target`."""

    def __init__(
        self, target: Path | str, choice: CodecChoice, options: Mapping[str, Any] | None
    ) -> None:
        self._target, self._choice, self._options = target, choice, options
        #: Sizes of samples as differences, None for models that have none of their tensors.
        self.sizes: list[tuple[int | None, str]] = []
        #: Names of models that depend on the target, and of those that cannot be read, with errors.
        self.depending: list[str] = []
        self.unread: dict[str, str] = {}

    def has_model(self, path: str) -> bool:
        """Return whether a model is at a path."""
        found = None
        with self._noting_errors(path):
            found = detect(path)
        return found is not None

    @contextmanager
    def _noting_errors(self, candidate: str) -> Iterator[None]:
        try:
            yield
        except NoGroupError as e:
            # At an address, a folder of other files is known by that alone.
            if path_of(candidate) is not None:
                self.unread[os.path.basename(candidate)] = one_line(e)
        except (BF16CodecsError, OSError) as e:
            self.unread[os.path.basename(candidate)] = one_line(e)

    @contextmanager
    def _opened(self, candidate: str) -> Iterator[ModelReader | None]:
        """Open a model, or the last step of a run; yield None if it depends on the target."""
        is_local = path_of(candidate) is not None
        kind = detect(candidate) if is_local else suffix_of(candidate)[1]
        open_it = open_any if kind is Kind.SAFETENSORS else open_either
        with closing(open_it(candidate, Opening(None if is_local else self._options))) as reader:
            model = reader
            if isinstance(reader, RunReader):
                model = reader.step(reader.run.numbers[-1])
            target = identity(str(self._target))
            if any(identity(each.location[0]) == target for each in chain_of(model)):
                self.depending.append(os.path.basename(candidate))
                yield None
            else:
                yield model

    def nearest(self, candidates: Sequence[str], sketch: Sketch) -> list[str]:
        """Return the few models that a sketch is nearest to."""
        at_once = 1 if path_of(candidates[0]) is not None else _REQUESTS
        jobs = (partial(self._estimate, candidate, sketch) for candidate in candidates)
        with closing(run_ahead(jobs, at_once)) as estimates:
            pairs = list(zip(estimates, candidates, strict=True))
        bits = sorted((bits, candidate) for bits, candidate in pairs if bits is not None)
        return [candidate for _, candidate in bits[:_MOST_TRIED]]

    def _estimate(self, candidate: str, sketch: Sketch) -> float | None:
        """Estimate the bits per value as differences to a model; None if it is no base."""
        bits = None
        with self._noting_errors(candidate), self._opened(candidate) as model:
            if model is not None:
                bits = sketch.bits(sketch_of(model))
                if bits is None:
                    self.sizes.append((None, candidate))
        return bits

    def sample(self, candidate: str, samples: Sequence[Sample]) -> None:
        """Code samples as differences to a model."""
        with self._noting_errors(candidate), self._opened(candidate) as model:
            if model is not None:
                step = model.location[1]
                named = candidate if step is None else f"{candidate}@{step}"
                self.sizes.append((coded_nbytes(samples, self._choice, model), named))
