"""Folders of Hugging Face models for tests, and the contents of folders."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from lazy_models import weights, write_safetensors

SHARDS = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]


def write_sharded(folder: Path, variant: str = "") -> None:
    """Write a model of two files with an index, which has white space of its own."""
    shards = [name.replace("model", f"model{variant}") for name in SHARDS]
    names = dict(zip(("embed.weight", "norm.weight"), shards, strict=True))
    for seed, (name, file) in enumerate(names.items()):
        write_safetensors(folder / file, {name: weights((90, 70), seed=seed)}, {"format": "pt"})
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": names}, indent=3) + "\n\n"
    (folder / f"model.safetensors.index{variant}.json").write_text(index)


def write_folder(folder: Path) -> Path:
    """Write a model folder with every kind of file that such folders may hold."""
    (folder / "unet" / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    write_sharded(folder)
    for name in ("adapter_model", "unet/deep/diffusion_pytorch_model.fp16"):
        write_safetensors(folder / f"{name}.safetensors", {"w": weights((40, 30), "float32")})
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text('{"a": "\u00e9"}', encoding="utf-8")
    (folder / "empty.txt").touch()
    (folder / ".gitattributes").write_bytes(b"*.bin\r\n")
    (folder / ".hidden.safetensors").write_bytes(b"no weights")
    (folder / "pytorch_model.bin").write_bytes(bytes(range(256)))
    (folder / "unet" / "modeling_own.py").write_text("x = 1\n")
    (folder / "unet" / "modeling_own.py").chmod(0o755)
    (folder / SHARDS[1]).chmod(0o640)
    for path, mode in ((folder / "empty", 0o711), (folder / "unet", 0o750), (folder, 0o700)):
        path.chmod(mode)
    return folder


def contents(folder: Path) -> dict[str, tuple[int, bytes] | None]:
    """Return bytes and modes of all files by their paths, and None for folders."""
    found: dict[str, tuple[int, bytes] | None] = {}
    for path in sorted(folder.rglob("*")):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        name = path.relative_to(folder).as_posix()
        found[name] = None if path.is_dir() else (mode, path.read_bytes())
    return found


def folder_modes(folder: Path) -> dict[str, int]:
    """Return the modes of a folder and of those in it."""
    paths = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    return {p.relative_to(folder).as_posix(): stat.S_IMODE(os.stat(p).st_mode) for p in paths}


def manifest_of(packed: Path) -> dict[str, Any]:
    """Return the manifest of a packed folder."""
    manifest: dict[str, Any] = json.loads((packed / "bf16codecs.json").read_text())
    return manifest


def edit_manifest(packed: Path, **values: object) -> None:
    """Change the manifest of a packed folder."""
    (packed / "bf16codecs.json").write_text(json.dumps(manifest_of(packed) | values))
