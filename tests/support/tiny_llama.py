"""A tiny random transformers model, in folders as transformers saves it, and packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bf16codecs.convert import pack_hugging_face
from lazy_imports import lazily

torch = lazily("torch")
transformers = lazily("transformers")


def tiny_config(**options: Any) -> transformers.LlamaConfig:
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96}
    return transformers.LlamaConfig(
        **sizes,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        **{"dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, **options},
    )


def tiny_llama(**options: Any) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = tiny_config(**options)
    return transformers.LlamaForCausalLM(config).to(config.dtype or torch.float32)


def saved(folder: Path, model: transformers.LlamaForCausalLM | None = None, **options: Any) -> Path:
    """Save a model as transformers does, with its own generation configuration."""
    model = tiny_llama() if model is None else model
    model.generation_config.max_new_tokens = 17
    model.save_pretrained(folder, **options)
    return folder


def packed(folder: Path, to: Path) -> Path:
    pack_hugging_face(folder, to)
    return to


def bits_of(model: torch.nn.Module) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    """Return dtype, shape and bytes of all tensors of a model."""
    return {
        name: (t.dtype, tuple(t.shape), t.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, t in model.state_dict().items()
    }


def same(ours: torch.nn.Module, theirs: torch.nn.Module) -> bool:
    """Tell whether two models are of one class and have the same bits."""
    return type(ours) is type(theirs) and bits_of(ours) == bits_of(theirs)
