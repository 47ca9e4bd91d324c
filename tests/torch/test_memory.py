"""Loading from a store takes hardly more memory than the model; `-s` shows how much."""

from __future__ import annotations

import sys

import pytest

from lazy_imports import lazily
from tiny_llama import packed

torch = lazily("torch")
transformers = lazily("transformers")

LOAD = """
import sys
import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaForCausalLM
import bf16codecs.torch
import bf16codecs.zarr

def status_field(key):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(key))) << 10

function, place, dtype = sys.argv[1:]
before = status_field("VmRSS")
if function == "ours":
    model = bf16codecs.torch.from_pretrained(AutoModelForCausalLM, place, dtype=dtype)
else:
    model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype)
for parameter in model.parameters():  # those that are mapped into memory are read by that
    parameter.view(torch.uint8).max()
size = sum(p.numel() * p.element_size() for p in model.parameters())
print(status_field("VmHWM") - before - size, size, max(p.nbytes for p in model.parameters()))
"""


@pytest.fixture(scope="module")
def folder(needs_transformers, tmp_path_factory):
    """Return a folder with a model, and the packed one."""
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=16,
        dtype="bfloat16",
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder / "native")
    packed(folder / "native", folder / "packed")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the memory")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_less_than_a_tensor_beside_the_model(folder, run_python, dtype):
    more = {}
    for function, place in (("native", "native"), ("ours", "packed")):
        arguments = function, str(folder / place), dtype
        more[function], size, largest = map(int, run_python(LOAD, *arguments).stdout.split())
    shown = {name: f"{nbytes / 1e6:.0f} MB" for name, nbytes in more.items()}
    print(f"\n{dtype}: beside a model of {size / 1e6:.0f} MB: {shown}")
    assert more["ours"] < largest
