"""Makes tests/convert/goldens/gguf_files with the package gguf, which the tests do not need.

    python tests/support/make_gguf_files.py

The files that are there were made by gguf 0.19.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, quants

FOLDER = Path(__file__).parent.parent / "convert" / "goldens" / "gguf_files"
QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ2_0", "BF16", "F16", "F32")


def main() -> None:
    weights = np.random.default_rng(0).normal(0, 0.02, (6, 256)).astype("f4")
    for name, endianess in (("little", "LITTLE"), ("big", "BIG")):
        order = getattr(gguf.GGUFEndian, endianess)
        writer = gguf.GGUFWriter(FOLDER / f"{name}.gguf", "llama", endianess=order)
        writer.add_name("a model")
        writer.add_context_length(128)
        writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "ä"])
        writer.add_array("numbers", [1, 2, 3])
        writer.add_array("truths", [True, False])
        writer.add_float32("float", 0.5)
        for kind in QUANTIZED if name == "little" else ("F32", "F16"):
            form = GGMLQuantizationType[kind]
            data = quants.quantize(weights, form)
            writer.add_tensor(f"blk.0.{kind}.weight", data, raw_dtype=form)
        writer.add_tensor("bias", np.arange(5, dtype="f4"))
        writer.add_tensor("ids", np.arange(7, dtype="i4"))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


if __name__ == "__main__":
    main()
