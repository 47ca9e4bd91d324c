"""Tensors in memory as a file: of tensors in another order, only the read parts are copied."""

from __future__ import annotations

import numpy as np
import pytest

from lazy_imports import lazily
from tiers import by_tier

torch = lazily("torch")
memory = lazily("bf16codecs.torch.tensors")


def tensors():
    """Yield tensors in other orders, with gaps, expanded, conjugated, and of no items."""
    whole = torch.arange(2 * 3 * 4 * 5, dtype=torch.int16).reshape(2, 3, 4, 5)
    numbers = torch.complex(whole.float(), -whole.float())
    yield whole
    yield whole.permute(3, 1, 0, 2)
    yield whole.permute(0, 2, 3, 1)
    yield whole[:1].permute(0, 3, 2, 1)
    yield whole[1:, :, ::2, 1::3]
    yield whole[0, 0, 0, ::2]
    yield whole[:, :1, :1, ::5]
    yield whole[:1, :1, :1, ::5].float()
    yield whole[:1, :1].expand(4, 3, 4, 5)
    yield numbers.conj()
    yield numbers.conj().imag
    yield numbers.mT.conj()
    yield torch.empty(0, 3).T
    yield whole[0, 0, 0, 0]


def test_every_range() -> None:
    """The quick tier tries every seventh start."""
    for number, tensor in enumerate(tensors()):
        file = memory.source_of({"t": tensor}, {}, "t.safetensors")
        size = tensor.element_size()
        whole = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        expected = whole.reshape(-1).view(torch.uint8).numpy()
        for start in range(0, tensor.numel(), by_tier(7, 1)):
            for stop in range(start + 1, tensor.numel() + 1, 7):
                out = np.empty((stop - start) * size, np.uint8)
                file.read_range(0, file.headers[0].data_start + start * size, out)
                wanted = expected[start * size : stop * size]
                assert np.array_equal(out, wanted), (number, start, stop)


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
    file = memory.source_of({"t": whole}, {}, "t.safetensors")
    out = np.empty(4 * 10_000, np.uint8)
    file.read_range(0, file.headers[0].data_start + 4 * 500_000, out)
    assert largest <= 12_000
