"""Loads models of transformers from stores."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bf16codecs._base.paths import given_path, missing_path
from bf16codecs.store.kinds import HUB_SCHEME, Kind, address_scheme, detect, path_of
from bf16codecs.store.opening import split_step
from bf16codecs.torch.on_hub import CONFIG, packed_on_hub
from bf16codecs.torch.patching import Chosen, transformers_loads

__all__ = ["from_pretrained"]

# The configuration of an adapter's folder.
_ADAPTER_CONFIG = "adapter_config.json"


def from_pretrained(
    cls: Any,
    path: str | os.PathLike[str],
    *model_args: Any,
    config: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    base: Any = None,
    **options: Any,
) -> Any:
    """Load a model of transformers from a store.

    Tensors are read one after the other, as from safetensors files: in addition to the model, only
    a few tensors are in memory.

    Parameters
    ----------
    cls
        A class with `from_pretrained`: ``AutoModelForCausalLM``, ``LlamaModel`` and so on.
    path
        A folder with ``config.json`` and a store, ``model.zarr`` (or ``model.zarr.zip``,
        ``model.h5``), such as `bf16codecs.convert.pack_hugging_face` makes; with PEFT, also that of
        an adapter. Such a folder may be on a hub, at ``hf://owner/name[@revision][/folder]``. Or a
        store by itself: whatever `bf16codecs.open_model` opens, except a folder of safetensors.
    config
        The configuration, or a folder that has it. By default, the ``config.json`` in the folder,
        or for a store by itself, in it or beside it. A store by itself at an address needs it.
    storage_options, max_bytes, base
        As `bf16codecs.open_model` takes them.
    model_args, options
        As the `from_pretrained` of the class takes them: `dtype`, `device_map`, `subfolder`,
        `variant`, `output_loading_info` and so on, except `state_dict`. With
        `use_safetensors=False`, transformers loads weights in another format,
        ``pytorch_model.bin``, which a packed folder may have beside the store.

    Returns
    -------
    transformers.PreTrainedModel
        With `output_loading_info`, the model and a dict.

    Raises
    ------
    FileNotFoundError
        If the path does not exist, or has no configuration.
    bf16codecs.store.StoreError, bf16codecs.errors.CodecError
        If the folder has no store, or the store is damaged.
    ImportError
        If transformers is missing, or its release is not supported.
    TypeError
        If `cls` or `config` is of another type, or `state_dict` or `gguf_file` is given: the
        weights are in the store.
    ValueError
        If `config` is missing for a store at an address, or if `use_safetensors` is false and the
        model is a store by itself, or its configuration is in another folder.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> bf16codecs.torch.from_pretrained(AutoModel, "packed", dtype="auto")  # doctest: +SKIP
    """
    _check_kinds(cls, config)
    if options.get("state_dict") is not None or options.get("gguf_file") is not None:
        raise TypeError("from_pretrained of a store takes neither state_dict nor gguf_file")
    text, subfolder = given_path(path, "model"), options.get("subfolder") or ""
    if config is None and address_scheme(text) == HUB_SCHEME:
        variant = options.get("variant")
        text, config = packed_on_hub(text, storage_options, subfolder, variant)
    store, folder = _located(text)
    if folder is not None and not (folder / subfolder).is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such subfolder", os.fspath(folder / subfolder))
    opening = {"storage_options": storage_options, "max_bytes": max_bytes, "base": base}
    with _configured(config, store, folder, subfolder) as config_folder:
        if config is not None and not isinstance(config, (str, os.PathLike)):
            options["config"] = config
        if options.get("use_safetensors") is False:
            if config_folder != folder:
                raise ValueError(
                    "use_safetensors=False: the weights are in the store: leave it out"
                )
            # Packing has copied weights in another format.
            return cls.from_pretrained(str(config_folder), *model_args, **options)
        with transformers_loads(Chosen(str(config_folder), folder, store, opening)):
            return cls.from_pretrained(str(config_folder), *model_args, **options)


def _check_kinds(cls: Any, config: Any) -> None:
    """Raise TypeError unless these are a class of models, and a configuration, its path or None."""
    if not hasattr(cls, "from_pretrained"):
        text = f"cls must be a class with from_pretrained, such as AutoModel, not {cls!r:.80}"
        raise TypeError(text)
    is_path = config is None or isinstance(config, (str, os.PathLike))
    if not is_path and not hasattr(config, "save_pretrained"):
        kind = type(config).__name__
        text = f"config must be a folder or a configuration of transformers, not {config!r:.80}"
        raise TypeError(f"{text} ({kind})")


@contextmanager
def _configured(
    config: Any, store: str | None, folder: Path | None, subfolder: str
) -> Iterator[Path]:
    """Yield the folder with the configuration, for transformers."""
    if isinstance(config, (str, os.PathLike)):
        path = Path(given_path(config, "configuration"))
        path = path.parent if path.name == CONFIG else path
        if not (path / subfolder / CONFIG).is_file():
            raise FileNotFoundError(errno.ENOENT, f"No {CONFIG} there", str(path / subfolder))
        yield path
    elif config is None:
        yield _find_configuration(store, folder, subfolder)
    elif folder is not None and (folder / subfolder / CONFIG).is_file():
        yield folder
    else:
        # Without a folder, the Auto classes fail, and other classes would ask the hub.
        with TemporaryDirectory() as temporary:
            config.save_pretrained(os.path.join(temporary, subfolder))
            yield Path(temporary)


def _located(text: str) -> tuple[str | None, Path | None]:
    """Return the store at a path, or the folder that has to contain one."""
    path = path_of(text)
    if path is None:
        return text, None
    without_step = split_step(path)[0]
    if not os.path.exists(without_step):
        # transformers would look for a model of that name on the hub.
        raise missing_path(without_step, "No such folder or store")
    if os.path.isdir(without_step) and detect(without_step) is not Kind.FOLDER:
        return None, Path(path)
    return path, None


def _find_configuration(store: str | None, folder: Path | None, subfolder: str) -> Path:
    """Return the folder with the configuration of a model, in or beside it."""
    folders, where = [folder] if folder is not None else [], "in it"
    if store is not None:
        path = path_of(store)
        if path is None:
            raise ValueError(f"{store}: give config=: no configuration is looked for at an address")
        without_step = Path(split_step(path)[0])
        folders, where = [without_step, without_step.parent], "in it or beside it"
    for candidate in folders:
        if (candidate / subfolder / CONFIG).is_file():
            return candidate
    if folder is not None and (folder / subfolder / _ADAPTER_CONFIG).is_file():
        return folder
    raise FileNotFoundError(
        errno.ENOENT, f"No {CONFIG} {where}: give config=", store or str(folder)
    )
