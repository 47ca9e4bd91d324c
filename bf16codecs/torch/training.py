"""Appends checkpoints of transformers' `Trainer` to a run."""

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

# Names of pickled weights. Other files to resume from, such as an optimizer's, have other names.
_PICKLED = re.compile(r"(?:pytorch|adapter)_model(?:-\d+-of-\d+)?\.bin")


class RunCallback(TrainerCallback):
    """Appends the weights of each checkpoint that a `Trainer` saves to a run store.

    The run keeps every step, whatever `save_total_limit` removes. A step that it already has, as
    after a resume, is not written again, and must have the same weights: training that begins anew,
    or continues from an earlier checkpoint, needs a run of another name. If there are several
    processes, the one with rank 0 writes. An error, such as a full disk, ends the training, as an
    error of the `Trainer` in saving does; the checkpoint is complete by then.

    A run gets the safetensors files directly in the folder of a checkpoint. A PEFT model with
    several adapters, or with one that is not named "default", is refused before the training
    begins, since the `Trainer` saves these in subfolders. A checkpoint that has weights in
    subfolders, or pickled ones, is refused when it is saved.

    Parameters
    ----------
    path
        The run: a folder, or an HDF5 file if the name ends in ``.h5`` or ``.hdf5``. If it does not
        exist, the first checkpoint begins it.
    options
        `codec`, `level`, `keyframe_every` and others, as `bf16codecs.convert.append_to_run` takes
        them, except `step` and `as_hdf5`.

    Raises
    ------
    TypeError, ValueError
        If an option is unknown or invalid; if the path is an address, or has the suffix of another
        kind of file, or names a step.

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
        # Invalid arguments must not fail hours later, at the first checkpoint.
        _check_path(self._path, Kind.HDF5 if is_hdf5 else Kind.FOLDER)
        inspect.signature(append_to_run).bind("", self._path, step=0, **self._options)
        _check_options(options)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Refuse a model or a path that cannot be used, before any training.

        Raises
        ------
        StoreError
            If something other than a run is at the path.
        ValueError
            If the run was made with other options, or the model has adapters that are saved in
            subfolders.
        """
        _check_adapters(model)
        if state.is_world_process_zero and self._exists():
            with closing(open_run_store(self._path)) as run:
                options = _given(choice_of_run, self._options)
                stored_format = run.stored.zarr_format or None
                choice_of_run(self._path, run.run, **options, stored_format=stored_format)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Append the saved checkpoint.

        Raises
        ------
        StoreError
            If the run has other weights at this step, or has later steps but not this one; or if
            the checkpoint has weights that a run would not get.
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
                f"{self._path}: has the steps of another training, up to {steps[-1]}: training"
                " that begins anew, or continues from an earlier checkpoint, needs a run of another"
                f" name ({e})"
            ) from e

    def _steps(self) -> list[int]:
        if not self._exists():
            return []
        with open_run(self._path) as run:
            return list(run.steps)

    def _exists(self) -> bool:
        return os.path.lexists(self._path) and not is_free_folder(Path(self._path))


def _check_path(path: str, kind: Kind) -> None:
    """Refuse a path that `append_to_run` cannot make, or that names a step."""
    check_store_name(path, absolute_target(path, []), kind)
    run, step = split_step(path)
    if step is not None:
        raise ValueError(f"{path}: reads as step {step} of {run}: leave out @{step}")


def _check_adapters(model: Any) -> None:
    """Refuse a PEFT model that a `Trainer` saves in several folders.

    Each adapter but "default" gets a folder, with the same names of files and tensors.
    """
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel):
        return
    others = [name for name in model.peft_config if name != "default"]
    if others:
        raise ValueError(
            f"RunCallback keeps one adapter, named 'default', but the model has"
            f" {few([repr(name) for name in others], 3)}, which the Trainer saves in folders of"
            " their own: name the only one 'default', or train without RunCallback"
        )


def _check_folder(folder: Path) -> None:
    """Refuse weights that the run would not get, since `save_total_limit` may remove them."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    # Pickled weights count only in folders without safetensors.
    saved_folders = {path.parent for path in files if path.suffix == ".safetensors"}
    missed = [
        path.as_posix()
        for path in files
        if (path.suffix == ".safetensors" and path.parent != Path())
        or (_PICKLED.fullmatch(path.name) and path.parent not in saved_folders)
    ]
    if missed:
        raise StoreError(
            f"{folder}: a run gets the *.safetensors of this folder alone, and not"
            f" {few(missed, 3)}: save these elsewhere, as safetensors in this folder under other"
            " names, or train without RunCallback"
        )


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError for options that `append_to_run` would refuse."""
    RunOptions(**_given(RunOptions, options))
    with codec_threads(options.get("threads")):
        pass


def _given(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a function takes, without those left at None."""
    names = inspect.signature(function).parameters.keys() & options.keys()
    parameters = inspect.signature(append_to_run).parameters
    defaults = {n for n in names if options[n] is None and parameters[n].default is None}
    return {name: options[name] for name in names - defaults}
