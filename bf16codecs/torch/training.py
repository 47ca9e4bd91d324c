"""Checkpoints of transformers' `Trainer` as steps of a run."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from bf16codecs._base.messages import few, from_extra
from bf16codecs._base.paths import absolute, given_path
from bf16codecs._base.threads import codec_threads
from bf16codecs.convert import append_to_run, verify_store
from bf16codecs.convert.options import RunOptions
from bf16codecs.convert.runs.series import choice_of_run
from bf16codecs.convert.target import absolute_target, check_store_name, is_free_folder
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.model.run import open_run
from bf16codecs.store.kinds import Kind, suffix_of
from bf16codecs.store.opening import open_run_store, split_step

with from_extra("transformers", "RunCallback"):
    from transformers.trainer_callback import TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

__all__ = ["RunCallback"]

# Pickled weights. Other files to resume from, such as an optimizer's, have other names.
_PICKLED = re.compile(r"(?:pytorch|adapter)_model(?:-\d+-of-\d+)?\.bin")


class RunCallback(TrainerCallback):
    """Appends the weights of each checkpoint that a `Trainer` saves to a run store.

    The run keeps every step, whatever `save_total_limit` removes. A step that it already has, as
    after a resume, is not written again, and has to have the same weights: training that begins
    anew, or goes on from an earlier checkpoint, needs a run of another name. Of several processes,
    the one with rank 0 writes. An error, such as a full disk, ends the training, as one of saving
    does; the checkpoint is there by then.

    A run gets the safetensors files in the folder of a checkpoint. A model with several adapters of
    PEFT, or one that is not named "default", is refused before the training begins, since the
    `Trainer` saves these in folders below it; and a checkpoint that has weights there, or pickled
    ones, when it is saved.

    Parameters
    ----------
    path
        The run: a folder, or an HDF5 file if the name ends in ``.h5`` or ``.hdf5``. It is begun
        with the first checkpoint, if nothing is there.
    options
        `codec`, `level`, `keyframe_every` and others, as `bf16codecs.convert.append_to_run` takes
        them, but `step` and `as_hdf5`.

    Raises
    ------
    TypeError, ValueError
        If there is no such option, or it makes no sense; if the path is an address, or has the name
        of something else, or of a step.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> callback = bf16codecs.torch.RunCallback("run.zarr", keyframe_every=8)
    >>> Trainer(model, arguments, callbacks=[callback])  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._path = given_path(path, "run")
        is_hdf5 = suffix_of(os.path.basename(self._path))[1] is Kind.HDF5
        self._options = {**options, "as_hdf5": is_hdf5}
        # Not after the hours that it takes to the first checkpoint.
        _check_place(self._path, Kind.HDF5 if is_hdf5 else Kind.FOLDER)
        inspect.signature(append_to_run).bind("", self._path, step=0, **self._options)
        _check_options(options)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Refuse a model or a path that cannot be used, before any training.

        Raises
        ------
        StoreError
            If it is no run.
        ValueError
            If it is one that was made with other options, or the model has adapters that are saved
            in folders of their own.
        """
        _check_adapters(model)
        if state.is_world_process_zero and self._is_there():
            with closing(open_run_store(self._path)) as run:
                choice_of_run(Path(self._path), run.run, **_given(choice_of_run, self._options))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Append the saved checkpoint.

        Raises
        ------
        StoreError
            If the run has other weights at this step, or later steps and not this one; or if the
            checkpoint has weights that a run would not get.
        """
        if not state.is_world_process_zero:
            return
        step, steps = state.global_step, self._steps()
        folder = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}")
        _check_folder(folder)
        if not steps or step > steps[-1]:
            os.makedirs(os.path.dirname(absolute(self._path)), exist_ok=True)
            append_to_run(folder, self._path, step, **self._options)
            return
        try:
            if step not in steps:
                raise StoreError(f"there is no step {step}")
            verify_store(f"{self._path}@{step}", folder)
        except BF16CodecsError as e:
            raise StoreError(
                f"{self._path}: has the steps of another training, up to {steps[-1]}: what begins"
                f" anew, or goes on from an earlier checkpoint, needs a run of another name ({e})"
            ) from e

    def _steps(self) -> list[int]:
        if not self._is_there():
            return []
        with open_run(self._path) as run:
            return list(run.steps)

    def _is_there(self) -> bool:
        return os.path.lexists(self._path) and not is_free_folder(Path(self._path))


def _check_place(path: str, kind: Kind) -> None:
    """Refuse a path that `append_to_run` cannot make, or that would name a step."""
    check_store_name(path, absolute_target(path, []), kind)
    run, step = split_step(path)
    if step is not None:
        raise ValueError(f"{path}: reads as step {step} of {run}: leave out @{step}")


def _check_adapters(model: Any) -> None:
    """Refuse a model of PEFT that a `Trainer` saves as more than the files of one folder.

    All adapters but "default" get a folder each, with the same names of tensors and files.
    """
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel):
        return
    others = [name for name in model.peft_config if name != "default"]
    if others:
        raise ValueError(
            f"RunCallback keeps one adapter, named 'default', and the model has"
            f" {few([repr(name) for name in others], 3)}, which the Trainer saves in folders of"
            " their own: name the only one 'default', or train without RunCallback"
        )


def _check_folder(folder: Path) -> None:
    """Refuse weights beside a checkpoint's safetensors files: `save_total_limit` removes them."""
    found = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    stored = {path.parent for path in found if path.suffix == ".safetensors"}
    left = [
        path.as_posix()
        for path in found
        if (path.suffix == ".safetensors" and path.parent != Path())
        or (_PICKLED.fullmatch(path.name) and path.parent not in stored)
    ]
    if left:
        raise StoreError(
            f"{folder}: a run gets the *.safetensors of this folder alone, and not"
            f" {few(left, 3)}: save these elsewhere, as safetensors in this folder under names of"
            " their own, or train without RunCallback"
        )


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError for what `append_to_run` would refuse."""
    RunOptions(**_given(RunOptions, options))
    with codec_threads(options.get("threads")):
        pass


def _given(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a function takes, without those left at None."""
    names = inspect.signature(function).parameters.keys() & options.keys()
    own = inspect.signature(append_to_run).parameters
    is_left = {name for name in names if options[name] is None and own[name].default is None}
    return {name: options[name] for name in names - is_left}
