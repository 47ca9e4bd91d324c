"""Choose the best base for a model among those of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from bf16codecs._base.messages import counted, few, one_line
from bf16codecs._base.paths import given_path, require_path, resolved
from bf16codecs.convert.samples import Sample, coded_nbytes, take_samples
from bf16codecs.convert.sketches import Sketch, sketch_of
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.bases import local_chain
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.kinds import Kind, detect
from bf16codecs.store.opening import open_any, open_either
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.reader import RunReader

__all__ = ["AUTO", "pick_base"]

#: Prefix of a folder from which the best base is taken.
AUTO = "auto:"
# Least saving of differences, by the sample, that justifies depending on another model.
_LEAST_GAIN = 0.02
# Models in a message, of those that were tried.
_SHOWN = 5
# Of more models, the search tries those whose sketches are nearest.
_MOST_TRIED = 8


def pick_base(
    folder: str, source: ModelReader | None, target: Path, choice: CodecChoice
) -> tuple[Path | None, str]:
    """Return the best base in a folder, None if it saves too little, and a line that says why."""
    if "://" in folder:
        raise ValueError(f"{AUTO}{folder}: only local folders are searched for a base")
    require_path(given_path(folder, "folder of bases"))
    paths = sorted(Path(folder).iterdir())
    samples = [] if source is None else take_samples(source)
    excluded = {resolved(path) for path in (target, *([] if source is None else source.paths))}
    # A folder of shards is the source as well.
    excluded |= {parent for path in excluded for parent in path.parents}
    found = _Search(target, choice)
    candidates = [path for path in paths if path.name[0] != "." and resolved(path) not in excluded]
    candidates = [path for path in candidates if found.has_model(path)]
    if len(candidates) > _MOST_TRIED and source is not None:
        candidates = found.nearest(candidates, sketch_of(source))
    for path in candidates:
        found.sample(path, samples)
    sizes, depending, unread = found.sizes, found.depending, found.unread
    if not sizes and not depending:
        reason = f": {next(iter(unread.values()))}" if unread else ""
        raise StoreError(f"{AUTO}{folder}: no model in this folder can be the base{reason}")
    fitting = sorted((size, path) for size, path in sizes if size is not None)
    best, text = _best(fitting, samples, coded_nbytes(samples, choice) or 0)
    if not fitting:
        strangers = f"none of {counted(len(sizes), 'model')} in {folder} has a tensor in common"
        text = f"no base: {strangers if sizes else f'no other model is in {folder}'}"
    if depending:
        text += f"; left out, since their base is {target.name}: {few(depending, _SHOWN)}"
    if unread:
        why = next(iter(unread.values()))
        text += f"; could not be read: {few(list(unread), _SHOWN)} ({why})"
    return best, text


def _best(
    found: list[tuple[int, Path]], samples: list[Sample], alone: int
) -> tuple[Path | None, str]:
    """Return the first of bases, ordered by size, if it saves enough, and a line about them."""
    values = sum(sample.data.size // np.dtype(sample.dtype).itemsize for sample in samples)
    bits = 8 / max(1, values)
    listed = ", ".join(f"{path.name} {size * bits:.2f}" for size, path in found[:_SHOWN])
    text = f"by a sample: {alone * bits:.2f} bits per value alone, as a difference to {listed}"
    if not found or found[0][0] > (1 - _LEAST_GAIN) * alone:
        return None, f"no base is worth it, {text}"
    return found[0][1], text


class _Search:
    """The models of a folder that were looked at, as bases for a store at `target`."""

    def __init__(self, target: Path, choice: CodecChoice) -> None:
        self._target, self._choice = target, choice
        #: Sizes of samples as differences, None for models that have none of their tensors.
        self.sizes: list[tuple[int | None, Path]] = []
        #: Names of models that depend on the target, and of those that cannot be read, with errors.
        self.depending: list[str] = []
        self.unread: dict[str, str] = {}

    def has_model(self, path: Path) -> bool:
        """Return whether a model is at a path."""
        found = None
        with self._noting_errors(path):
            found = detect(path)
        return found is not None

    @contextmanager
    def _noting_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (BF16CodecsError, OSError) as e:
            self.unread[path.name] = one_line(e)

    @contextmanager
    def _opened(self, path: Path) -> Iterator[ModelReader | None]:
        """Open a model, or the last step of a run; yield None if it depends on the target."""
        is_file = detect(path) is Kind.SAFETENSORS
        with closing(open_any(path) if is_file else open_either(path)) as reader:
            model = reader
            if isinstance(reader, RunReader):
                model = reader.step(reader.run.numbers[-1])
            if resolved(self._target) in {resolved(base) for base in local_chain(model)}:
                self.depending.append(path.name)
                yield None
            else:
                yield model

    def nearest(self, paths: Sequence[Path], sketch: Sketch) -> list[Path]:
        """Return the few models that a sketch is nearest to."""
        bits: list[tuple[float, Path]] = []
        for path in paths:
            with self._noting_errors(path), self._opened(path) as model:
                if model is None:
                    continue
                estimate = sketch.bits(sketch_of(model))
                if estimate is None:
                    self.sizes.append((None, path))
                else:
                    bits.append((estimate, path))
        return [path for _, path in sorted(bits)[:_MOST_TRIED]]

    def sample(self, path: Path, samples: Sequence[Sample]) -> None:
        """Code samples as differences to a model."""
        with self._noting_errors(path), self._opened(path) as model:
            if model is not None:
                step = model.location[1]
                named = path if step is None else path.with_name(f"{path.name}@{step}")
                self.sizes.append((coded_nbytes(samples, self._choice, model), named))
