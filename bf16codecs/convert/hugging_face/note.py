"""The note in a packed folder for those who find it on a hub."""

from __future__ import annotations

import shlex

from bf16codecs._base.messages import few
from bf16codecs._base.tables import printable
from bf16codecs.convert.hugging_face.packed import NOTE, Manifest

__all__ = ["note_of"]

# How many files of a store, and how many stores, are named.
_SHOWN_FILES, _SHOWN_STORES = 3, 20
_TEXT = """\
# Weights in bf16codecs stores

The weights of this model are in [Zarr](https://zarr.dev) stores, compressed without loss by
bf16codecs:

{stores}

All other files are as they were. To load the folder of this file, `PACKED`, with transformers:

```python
import bf16codecs.torch
from transformers import AutoModel

model = bf16codecs.torch.from_pretrained(AutoModel, "PACKED")
```

To get every original file back, byte for byte, or those of one store:

```sh
bf16codecs pack-hf PACKED ORIGINAL --restore
{command}
```
"""


def note_of(manifest: Manifest) -> str:
    """Say what the stores of a packed folder are, how to load them, and how to restore the files.

    "" if the folder has its own file of that name, in any case of letters, which stays.
    """
    if NOTE.lower() in map(str.lower, (*manifest.files, *manifest.folders)):
        return ""
    stores = sorted(manifest.stores.items())
    lines = [f"- `{store}`: {few(sorted(files), _SHOWN_FILES)}" for store, files in stores]
    if len(lines) > _SHOWN_STORES:
        lines[_SHOWN_STORES:] = [f"- and {len(lines) - _SHOWN_STORES} more"]
    store, files = stores[0]
    target = next(iter(files)).rpartition("/")[2] if len(files) == 1 else "FILES"
    command = shlex.join(["zarr2st", f"PACKED/{store}", target])
    return _TEXT.format(stores="\n".join(map(printable, lines)), command=printable(command))
