"""vLLM loads a folder that `pack-hf` made, like the original, in one process and in two."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bf16codecs.convert import pack_hugging_face
from checkout import package_environment
from lazy_models import weights, write_safetensors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}

LOAD = """
import hashlib, json, sys

def digest(model):
    import torch
    found = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        found.update(name.encode())
        found.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()

if __name__ == "__main__":
    import load_in_vllm
    from vllm import LLM, SamplingParams
    path, load_format, ranks, run = sys.argv[1:]
    run = json.loads(run)
    llm = LLM(
        weight_transfer_config={"backend": "bf16codecs"} if run else None,
        model=path, load_format=load_format, tensor_parallel_size=int(ranks), enforce_eager=True,
        skip_tokenizer_init=True, max_model_len=64, max_num_seqs=2, kv_cache_memory_bytes=64 << 20,
    )
    def found():
        sampling = SamplingParams(temperature=0, max_tokens=8, detokenize=False)
        (answer,) = llm.generate([{"prompt_token_ids": [1, 2, 3, 4]}], sampling)
        return llm.apply_model(load_in_vllm.digest), list(answer.outputs[0].token_ids)

    seen = [found()]
    if run:
        llm.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": run["init"]})
    for step in run.get("steps", ()):
        llm.collective_rpc("start_weight_update")
        llm.collective_rpc("update_weights", kwargs={"update_info": {"step": step}})
        llm.collective_rpc("finish_weight_update")
        llm.reset_prefix_cache()
        seen.append(found())
    print("FOUND", json.dumps(seen))
"""


def write_llama(folder: Path, seed: int = 0) -> Path:
    """Write a small model with random weights, which differ a little from seed to seed."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    size, inner, heads = 128, 256, 64
    tensors = {
        name: weights((512, size)) for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    shapes = {
        "self_attn.q_proj": (size, size),
        "self_attn.k_proj": (heads, size),
        "self_attn.v_proj": (heads, size),
        "self_attn.o_proj": (size, size),
        "mlp.gate_proj": (inner, size),
        "mlp.up_proj": (inner, size),
        "mlp.down_proj": (size, inner),
    }
    norms = ["model.norm"]
    for layer in (f"model.layers.{number}" for number in range(2)):
        for name, shape in shapes.items():
            tensors[f"{layer}.{name}.weight"] = weights(shape, seed=len(tensors))
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
    ones = np.ones(size, tensors["lm_head.weight"].dtype)
    tensors |= {f"{name}.weight": ones for name in norms}
    for number, tensor in enumerate(tensors.values()):
        tensor.reshape(-1)[:: 90 + number] += tensor.dtype.type(seed / 8)
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    return folder


Seen = list[tuple[list[str], list[int]]]


def loaded(folder: Path, path: Path, load_format: str, ranks: int, **run: Any) -> Seen:
    """Return digests of all ranks and an answer, after loading and after each step of a run."""
    (folder / "load_in_vllm.py").write_text(LOAD)
    done = subprocess.run(
        [
            sys.executable,
            folder / "load_in_vllm.py",
            path,
            load_format,
            str(ranks),
            json.dumps(run),
        ],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=folder,
        env=package_environment(
            PYTHONSAFEPATH="",
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_CPU_OMP_THREADS_BIND="|".join(str(rank) for rank in range(ranks)),
            VLLM_NO_USAGE_STATS="1",
            VLLM_ALLOW_INSECURE_SERIALIZATION="1",
            HF_HUB_OFFLINE="1",
        ),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    found: Seen = json.loads(line.removeprefix("FOUND"))
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_packed_folder(tmp_path: Path, ranks: int) -> None:
    names = {point.name for point in entry_points(group="vllm.general_plugins")}
    assert "bf16codecs" in names, "install the package: vLLM finds its plugins by their metadata"
    original = write_llama(tmp_path / "original")
    pack_hugging_face(original, tmp_path / "packed")
    assert not (tmp_path / "packed" / "model.safetensors").exists()
    expected = loaded(tmp_path, original, "auto", ranks)
    assert loaded(tmp_path, tmp_path / "packed", "bf16codecs", ranks) == expected


@pytest.mark.parametrize(("ranks", "keep_copy"), [(1, True), (2, True), (2, False)])
def test_steps_that_are_published(tmp_path: Path, ranks: int, keep_copy: bool) -> None:
    from bf16codecs.torch import load_file, publish

    folders = [write_llama(tmp_path / f"{step}", step) for step in range(4)]
    for step, folder in enumerate(folders):
        publish(tmp_path / "policy.zarr", load_file(folder / "model.safetensors"), step)
    init = {"path": str(tmp_path / "policy.zarr"), "keep_copy": keep_copy}
    steps = [1, 3]
    found = loaded(tmp_path, folders[0], "auto", ranks, init=init, steps=steps)
    expected = [loaded(tmp_path, folders[step], "auto", ranks) for step in (0, *steps)]
    assert found == [seen for (seen,) in expected]
    assert found[0] != found[1] != found[2]
