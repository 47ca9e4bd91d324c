"""The model that a conversion stores differences to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bf16codecs._messages import counted
from bf16codecs._paths import given_path
from bf16codecs.convert.sampling import Sample, coded_nbytes, take_samples
from bf16codecs.convert.target import absolute_target
from bf16codecs.errors import BaseMismatchError, BF16CodecsError, StoreError
from bf16codecs.safetensors import Source
from bf16codecs.store.backend import StoreReader
from bf16codecs.store.bases import files_of, path_to
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.entries import BaseReference
from bf16codecs.store.opening import Opening, detect, open_any

__all__ = ["AUTO", "Base", "opened_base"]

#: Before a folder: the best of the models in it.
AUTO = "auto:"
# What a difference has to gain, by the sample, so that a store depends on another one.
_LEAST_GAIN = 0.02


@dataclass(frozen=True)
class Base:
    """The model that differences are made to, and how the store will name it."""

    model: StoreReader
    reference: BaseReference
    state: Any
    #: Why it was picked, if nobody named it.
    reason: str = ""

    def check_unchanged(self) -> None:
        """Raise if it is no longer what `reference` says.

        Raises
        ------
        BaseMismatchError
            If it is not.
        """
        if self.model.state() != self.state:
            raise BaseMismatchError(f"{self.model.where}: changed while it was read as a base")


@contextmanager
def opened_base(
    base: str | os.PathLike[str] | None, source: Source, target: Path, choice: CodecChoice
) -> Iterator[Base | str]:
    """Open the base of a conversion, and close it at the end.

    Parameters
    ----------
    base
        Its path or address; ``"auto:"`` and a folder for the best of the models there, or None.
    source
        What is converted.
    target
        The store that will have differences to the base.
    choice
        What codes them.

    Yields
    ------
    Base or str
        The base, or why there is none: empty if nobody asked for one.

    Raises
    ------
    ValueError
        If the target would replace the base, or one of the bases that it has itself, or if the
        codec stores no differences.
    StoreError
        If the base is not a model, or there is none in the folder.
    """
    if base is None:
        yield ""
        return
    codec, place = choice.for_difference("bfloat16"), given_path(base, "base")
    reason = ""
    if place.startswith(AUTO):
        picked, reason = _pick(Path(place.removeprefix(AUTO)), source, target, choice)
        if picked is None:
            yield reason
            return
        place = str(picked)
    # The new store is the first of the chain.
    with closing(open_any(place, Opening(chain=("",)))) as model:
        absolute_target(target, _local_chain(model), "base")
        where, step = model.location
        state = model.state()
        reference = BaseReference(path_to(where, target), step, files_of(model), codec)
        yield Base(model, reference, state, reason)


def _local_chain(model: StoreReader | None) -> Iterator[Path]:
    """Yield the paths of a model and of its bases, as far as they are local."""
    while model is not None:
        where, _ = model.location
        if "://" not in where:
            yield Path(where)
        model = model.base


def _pick(
    folder: Path, source: Source, target: Path, choice: CodecChoice
) -> tuple[Path | None, str]:
    """Return the best base in a folder, if any is worth it, and why."""
    samples = take_samples(source)
    alone = coded_nbytes(samples, choice) or 0
    own = {path.resolve() for path in (target, *source.paths)}
    sizes: list[tuple[int, Path]] = []
    seen = 0
    for path in sorted(folder.iterdir()):
        if path.resolve() in own or path.name.startswith("."):
            continue
        size, is_model = _try(path, samples, target, choice)
        seen += is_model
        if size is not None:
            sizes.append((size, path))
    if not seen:
        raise StoreError(f"{AUTO}{folder}: no model is there")
    values = sum(sample.data.size // np.dtype(sample.dtype).itemsize for sample in samples)
    bits = 8 / max(1, values)
    if not sizes:
        return None, f"no base: none of {counted(seen, 'model')} in {folder} has a tensor in common"
    sizes.sort()
    found = ", ".join(f"{path.name} {size * bits:.2f}" for size, path in sizes[:5])
    text = f"by a sample: {alone * bits:.2f} bits a value alone, as a difference to {found}"
    best, path = sizes[0]
    if best > (1 - _LEAST_GAIN) * alone:
        return None, f"no base is worth it, {text}"
    return path, text


def _try(
    path: Path, samples: list[Sample], target: Path, choice: CodecChoice
) -> tuple[int | None, bool]:
    """Return the samples' size against a model, if it has some of them; and whether it is one."""
    try:
        if detect(path) is None:
            return None, False
        with closing(open_any(path)) as model:
            if target in _local_chain(model):
                return None, True
            return coded_nbytes(samples, choice, model), True
    except (BF16CodecsError, OSError):
        return None, False
