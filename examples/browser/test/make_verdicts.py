"""What Python makes of frames and stores, sound and damaged ones: the bytes' digest, or the error.

The same is asked of the decoder in WebAssembly: see `make_cases`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import bf16codecs
from bf16codecs.errors import CodecError

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests/support"))
from strange_frames import CORPUS, strange_frames

# Of those that `make_cases` writes.
STORES = ("model-arithmetic-3.zarr", "model-huffman-2.zarr", "model-zstd-3.zarr", "run.zarr")


def verdict_of(decode: Callable[[], Any]) -> dict[str, Any]:
    try:
        raw = bytes(decode())
    except CodecError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}


def changes(data: bytes, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Yield what is done to a frame: bits turned, an end cut off, a byte too many."""
    for part in (0, 32, len(data) // 2):
        at = min(part + int(rng.integers(0, 32)), len(data) - 1)
        yield {"flip": [at, 1 << int(rng.integers(0, 8))]}
    yield {"cut": int(rng.integers(0, len(data)))}
    yield {"more": 1}


def changed(data: bytes, change: dict[str, Any]) -> bytes:
    if "flip" in change:
        at, bit = change["flip"]
        return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
    if "cut" in change:
        return data[: change["cut"]]
    return data + bytes(change.get("more", 0))


def write_frames(folder: Path) -> None:
    """Write the frames that every decoder has to agree on, and their verdicts; run lengths, too."""
    found: list[dict[str, Any]] = []
    with (folder / "frames.bin").open("wb") as file:

        def put(data: bytes | None) -> list[int] | None:
            if data is None:
                return None
            at = file.tell()
            file.write(data)
            return [at, len(data)]

        for name, frame, base in strange_frames():
            verdict = verdict_of(lambda f=frame, b=base: bf16codecs.decode(f, base=b))
            entry = {"codec": "frame", "name": name, "bytes": put(frame), "base": put(base)}
            found.append({**entry, **verdict})
        for path in sorted((CORPUS / "run_length").iterdir()):
            data = path.read_bytes()
            verdict = verdict_of(lambda d=data: bf16codecs.RunLength().decode(d))
            entry = {"codec": "rle", "name": path.name, "bytes": put(data), "base": None}
            found.append({**entry, **verdict})
    (folder / "frames.json").write_text(json.dumps(found))


def model_of(path: Path) -> Any:
    """Return the model of a store; of a run, that of its last step."""
    if path.name == "run.zarr":
        run = bf16codecs.open_run(path)
        return run[run.steps[-1]]
    return bf16codecs.open_model(path)


def write_stores(folder: Path) -> None:
    """Write the verdicts of reading tensors, of whose chunks one is damaged."""
    rng = np.random.default_rng(17)
    found = []
    for store in STORES:
        with model_of(folder / store) as model:
            tensors = {name: model[name].zarr.path for name in model if has_frames(model[name])}
        for name, path in tensors.items():
            chunks = [p for p in (folder / store / path).iterdir() if p.name[-1].isdigit()]
            for chunk in sorted(chunks):
                data = chunk.read_bytes()
                for change in changes(data, rng):
                    chunk.write_bytes(changed(data, change))
                    verdict = verdict_of(lambda s=store, n=name: read(folder / s, n))
                    file = chunk.relative_to(folder / store).as_posix()
                    case = {"store": store, "tensor": name, "file": f"/{file}", "change": change}
                    found.append({**case, **verdict})
                chunk.write_bytes(data)
    (folder / "damaged.json").write_text(json.dumps(found))


def has_frames(tensor: Any) -> bool:
    """Tell whether it is a float tensor with items, and an array of its own."""
    if tensor.size == 0 or tensor.name == "wide.rounded":
        return False
    return tensor.dtype.name not in ("complex64", "int64", "uint8", "bool")


def read(path: Path, name: str) -> bytes:
    with model_of(path) as model:
        return model[name][...].tobytes()


def write_unfinished(folder: Path) -> None:
    """Write the verdicts of reading steps of which the growing frame has only the room."""
    store, found = folder / "unfinished.zarr", []
    for name in ("w", "small"):
        shutil.copytree(folder / "run.zarr" / name, store / name, dirs_exist_ok=True)
        document = store / name / "zarr.json"
        metadata = json.loads(document.read_text())
        metadata["shape"][0] = 6  # the run has four
        document.write_text(json.dumps(metadata))
        array = zarr.open_array(store / name)
        rows: list[Any] = [None] * (array.ndim - 1)
        for first in ([3, None], [5, None], [5, [0, 2, 1]], [None, None], [[0, 4, 1], [0, 2, 1]]):
            selection = [*first, *rows[1:]]
            slices = tuple(s if isinstance(s, int) else slice(*(s or [None])) for s in selection)
            verdict = verdict_of(lambda a=array, s=slices: np.asarray(a[s]).tobytes())
            found.append({"array": name, "selection": selection, **verdict})
    (folder / "unfinished.json").write_text(json.dumps(found))
