"""Tensors in memory as a file: of those in another order, only what is read is copied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bf16codecs.torch.memory import source_of  # noqa: E402

WHOLE = torch.arange(2 * 3 * 4 * 5, dtype=torch.int16).reshape(2, 3, 4, 5)
COMPLEX = torch.complex(WHOLE.float(), -WHOLE.float())


@pytest.mark.parametrize(
    "tensor",
    [
        WHOLE,
        WHOLE.permute(3, 1, 0, 2),
        WHOLE.permute(0, 2, 3, 1),
        WHOLE[:1].permute(0, 3, 2, 1),
        WHOLE[1:, :, ::2, 1::3],
        WHOLE[0, 0, 0, ::2],
        WHOLE[:, :1, :1, ::5],
        WHOLE[:1, :1, :1, ::5].float(),
        WHOLE[:1, :1].expand(4, 3, 4, 5),
        COMPLEX.conj(),
        COMPLEX.conj().imag,
        COMPLEX.mT.conj(),
        torch.empty(0, 3).T,
        WHOLE[0, 0, 0, 0],
    ],
)
def test_every_range(tensor: torch.Tensor) -> None:
    (file,) = source_of({"t": tensor}, {}, Path("t.safetensors")).files
    size = tensor.element_size()
    whole = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    expected = whole.reshape(-1).view(torch.uint8)
    for start in range(tensor.numel()):
        for stop in range(start + 1, tensor.numel() + 1, 7):
            out = np.empty((stop - start) * size, np.uint8)
            file.read_into(file.header.data_start + start * size, out)
            assert np.array_equal(out, expected[start * size : stop * size].numpy())


def test_nothing_is_copied_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in another order, such as channels_last, would be in memory twice."""
    largest = 0
    contiguous = torch.Tensor.contiguous

    def counting(tensor: torch.Tensor, *arguments: object) -> torch.Tensor:
        nonlocal largest
        made = contiguous(tensor, *arguments)
        if made.data_ptr() != tensor.data_ptr():
            largest = max(largest, made.numel())
        return made

    monkeypatch.setattr(torch.Tensor, "contiguous", counting)
    whole = torch.zeros(1000, 1000).T
    (file,) = source_of({"t": whole}, {}, Path("t.safetensors")).files
    file.read_into(file.header.data_start + 4 * 500_000, np.empty(4 * 10_000, np.uint8))
    assert largest <= 12_000
