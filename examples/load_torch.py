"""Load a model store into a torch module, and save one.

    python examples/load_torch.py

It converts the package's demo model, makes a module of its architecture, loads the weights, and
saves them again.
"""

import importlib.resources
import re
import sys
import tempfile
from pathlib import Path

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr

try:
    import torch
    from torch import nn

    import bf16codecs.torch
except ImportError as error:
    sys.exit(f"load_torch.py: {error}: pip install 'bf16codecs[torch]'")


class Attention(nn.Module):
    """The projections of attention; the example does not run them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(width, width, bias=False))


class MLP(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to hidden states."""
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One layer, with the store's names."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(width)
        self.self_attn = Attention(width)
        self.post_attention_layernorm = nn.RMSNorm(width)
        self.mlp = MLP(width, hidden)


class Decoder(nn.Module):
    """Everything between tokens and logits."""

    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width)


class LanguageModel(nn.Module):
    """The whole model."""

    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.model = Decoder(vocabulary, width, hidden, layers)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)


def module_for(store: Path) -> LanguageModel:
    """Make a module that fits the store, from its shapes alone."""
    with bf16codecs.open_model(store) as model:
        vocabulary, width = model["model.embed_tokens.weight"].shape
        hidden, _ = model["model.layers.0.mlp.up_proj.weight"].shape
        numbers = {m[1] for name in model if (m := re.match(r"model\.layers\.(\d+)\.", name))}
    return LanguageModel(vocabulary, width, hidden, len(numbers))


def main() -> None:
    demo = importlib.resources.files("bf16codecs") / "data" / "demo.safetensors"
    with tempfile.TemporaryDirectory() as folder, importlib.resources.as_file(demo) as source:
        store = Path(folder) / "model.zarr"
        safetensors_to_zarr(source, store)

        with torch.device("meta"):  # allocates no memory for weights that will be replaced
            module = module_for(store).bfloat16()
        bf16codecs.torch.load_into(module, store)
        weight = module.model.layers[0].mlp.up_proj.weight
        print(f"{sum(p.numel() for p in module.parameters())} weights, {weight.dtype}")

        states = module.model.embed_tokens(torch.tensor([[ord(c) for c in "def main"]]))
        print("the first layer's MLP gives", tuple(module.model.layers[0].mlp(states).shape))

        again = Path(folder) / "again.zarr"
        bf16codecs.torch.save_file(module.state_dict(), again, metadata={"format": "pt"})
        restored = bf16codecs.torch.load_file(again)
        same = all(torch.equal(t, restored[name]) for name, t in module.state_dict().items())
        print("saved and loaded again:", "the same" if same else "DIFFERENT")


if __name__ == "__main__":
    main()
