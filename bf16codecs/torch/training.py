"""Checkpoints of transformers' `Trainer` as steps of a run."""

from __future__ import annotations

import inspect
import os
import warnings
from pathlib import Path
from typing import Any

from bf16codecs._messages import from_extra
from bf16codecs._paths import given_path
from bf16codecs.convert import append_to_run
from bf16codecs.model.run import open_run
from bf16codecs.store.kinds import Kind, suffix_of

with from_extra("transformers", "RunCallback"):
    from transformers.trainer_callback import TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

__all__ = ["RunCallback"]


class RunCallback(TrainerCallback):
    """Appends the weights of each checkpoint that a `Trainer` saves to a run store.

    The run keeps every step, whatever `save_total_limit` removes. Steps up to its last one are not
    written again, as after a resume; where training goes on from an earlier checkpoint than that,
    name another run. Of several processes, the one with rank 0 writes. An error, such as a full
    disk, ends the training, as one of saving does; the checkpoint is there by then.

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
    TypeError
        If there is no such option.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> callback = bf16codecs.torch.RunCallback("run.zarr", keyframe_every=8)
    >>> Trainer(model, arguments, callbacks=[callback])  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._path = given_path(path, "run")
        self._options = {
            **options,
            "as_hdf5": suffix_of(os.path.basename(self._path))[1] is Kind.HDF5,
        }
        # Not after the hours that it takes to the first checkpoint.
        inspect.signature(append_to_run).bind("", self._path, step=0, **self._options)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Append the checkpoint that was saved."""
        if not state.is_world_process_zero:
            return
        step = state.global_step
        steps = self._steps()
        if steps and step <= steps[-1]:
            if step not in steps:
                warnings.warn(
                    f"{self._path}: has steps up to {steps[-1]}, and step {step} is not appended:"
                    " a run for what goes on from an earlier checkpoint needs another name",
                    stacklevel=2,
                )
            return
        folder = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}")
        append_to_run(folder, self._path, step, **self._options)

    def _steps(self) -> list[int]:
        if not os.path.lexists(self._path):
            return []
        with open_run(self._path) as run:
            return list(run.steps)
