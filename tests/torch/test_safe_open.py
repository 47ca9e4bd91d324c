"""`safe_open` returns PyTorch tensors, as `safetensors.safe_open` does."""

from __future__ import annotations

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr
from lazy_imports import lazily

torch = lazily("torch")
safetensors = lazily("safetensors")
safetensors_torch = lazily("safetensors.torch")


def test_it_gives_the_same(tmp_path):
    state = {
        "w": torch.randn(8, 6).to(torch.bfloat16),
        "a": torch.randn(4).to(torch.float8_e4m3fn),
        "s": torch.tensor(2.5),
    }
    file, store = tmp_path / "m.safetensors", tmp_path / "m.zarr"
    safetensors_torch.save_file(state, file)
    safetensors_to_zarr(file, store)
    with safetensors.safe_open(file, "pt") as theirs, bf16codecs.safe_open(store) as ours:
        assert ours.keys() == theirs.keys() == sorted(state)
        pairs = [(ours.get_tensor(name), theirs.get_tensor(name)) for name in state]
        pairs += [(ours.get_slice("w")[1:3, ::2], theirs.get_slice("w")[1:3, ::2])]
        pairs += [(ours.get_slice(name)[...], theirs.get_slice(name)[...]) for name in state]
        for mine, known in pairs:
            assert (mine.dtype, mine.shape, mine.device) == (known.dtype, known.shape, known.device)
            same = (tensor.reshape(-1).view(torch.uint8) for tensor in (mine, known.contiguous()))
            assert torch.equal(*same)


def test_devices(tmp_path):
    safetensors_torch.save_file({"w": torch.ones(3)}, tmp_path / "m.safetensors")
    with bf16codecs.safe_open(tmp_path / "m.safetensors", "pt", "meta") as f:
        assert f.get_tensor("w").device.type == f.get_slice("w")[:2].device.type == "meta"


def test_tensors_select_as_they_do_in_pytorch(tmp_path):
    """Tensors of one item do not count as integers."""
    state = {"w": torch.randn(30, 20), "one": torch.tensor([7])}
    safetensors_torch.save_file(state, tmp_path / "m.safetensors")
    mask = torch.arange(30) % 7 == 0
    with bf16codecs.safe_open(tmp_path / "m.safetensors", "pt") as f:
        for selection in (
            *(torch.tensor([3]), torch.tensor(3), torch.tensor([[3, 1], [-1, 4]])),
            *(mask, torch.tensor([5]).reshape(1, 1), (slice(2, 9), torch.tensor([4]))),
        ):
            found = f.get_slice("w")[selection]
            assert found.shape == state["w"][selection].shape, selection
            assert torch.equal(found, state["w"][selection])
        one = f.get_slice("one")
        assert one[torch.tensor([True])].tolist() == one[torch.tensor([0])].tolist() == [7]
        assert one[torch.tensor([False])].tolist() == []
