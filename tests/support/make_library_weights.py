"""Writes tests/codecs/library_weights.npz: weights that libraries quantised and multiplied out.

    pip install torch bitsandbytes compressed-tensors gguf optimum-quanto torchao
    python tests/support/make_library_weights.py

The file was made with bitsandbytes 0.50.2, compressed-tensors 0.20.0, gguf of llama.cpp, quanto
0.2.7 and torchao 0.18.0. Tests need none of them. Arrays of bfloat16 are stored as unsigned
integers, with "bfloat16" in their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import bitsandbytes.functional as bnb
import gguf
import numpy as np
import optimum.quanto as quanto
import torch
import torchao.quantization as torchao
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.quantization.granularity import PerGroup

FILE = Path(__file__).parents[1] / "codecs" / "library_weights.npz"
ROWS, COLUMNS = 16, 512
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def normal() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(ROWS, COLUMNS) * torch.exp(torch.randn(ROWS, 1) * 0.3) * 0.02


def bitsandbytes(kind: str, size: int, dtype: torch.dtype, nested: bool = False) -> torch.Tensor:
    weights = normal().to(dtype)
    codes, state = bnb.quantize_4bit(weights, None, None, size, nested, kind)
    return bnb.dequantize_4bit(codes, state)


def bitsandbytes_int8(dtype: torch.dtype) -> torch.Tensor:
    codes, scales, _ = bnb.int8_vectorwise_quant(normal().to(FP16))
    return bnb.int8_vectorwise_dequant(codes, scales).to(dtype)


def compressed_tensors(dtype: torch.dtype, **args: object) -> torch.Tensor:
    arguments = QuantizationArgs(**args)
    weights = normal().to(dtype)
    groups = weights.float().reshape(ROWS, -1, arguments.group_size or COLUMNS)
    scale, zero = calculate_qparams(groups.amin(2), groups.amax(2), arguments)
    codes = quantize(weights, scale.to(dtype), zero, arguments)
    return dequantize(codes, scale.to(dtype), zero, arguments).to(dtype)


def by_torchao(config: object, dtype: torch.dtype) -> torch.Tensor:
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False, dtype=dtype)
    linear.weight = torch.nn.Parameter(normal().to(dtype))
    torchao.quantize_(linear, config)
    return linear.weight.dequantize()


def by_quanto(kind: object, dtype: torch.dtype) -> torch.Tensor:
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False, dtype=dtype)
    linear.weight = torch.nn.Parameter(normal().to(dtype))
    model = torch.nn.Sequential(linear)
    quanto.quantize(model, weights=kind)
    quanto.freeze(model)
    return model[0].weight.dequantize()


def by_gguf(name: str, dtype: torch.dtype) -> torch.Tensor:
    kind = gguf.GGMLQuantizationType[name]
    codes = gguf.quants.quantize(normal().numpy(), kind)
    return torch.from_numpy(gguf.quants.dequantize(codes, kind)).to(dtype)


MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    "bitsandbytes nf4 bfloat16": lambda: bitsandbytes("nf4", 64, BF16),
    "bitsandbytes nf4 nested float16": lambda: bitsandbytes("nf4", 128, FP16, True),
    "bitsandbytes fp4 bfloat16": lambda: bitsandbytes("fp4", 64, BF16),
    "bitsandbytes int8 float16": lambda: bitsandbytes_int8(FP16),
    "compressed-tensors fp8 bfloat16": lambda: compressed_tensors(
        BF16, num_bits=8, type="float", strategy="channel", symmetric=True
    ),
    "compressed-tensors int4 float16": lambda: compressed_tensors(
        FP16, num_bits=4, type="int", strategy="group", group_size=128, symmetric=False
    ),
    "torchao fp8 float32": lambda: by_torchao(torchao.Float8WeightOnlyConfig(), FP32),
    "torchao int4 bfloat16": lambda: by_torchao(
        torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)), BF16
    ),
    "torchao mxfp4 bfloat16": lambda: MXTensor.to_mx(
        normal().to(BF16), torch.float4_e2m1fn_x2, 32
    ).dequantize(BF16),
    "quanto int8 bfloat16": lambda: by_quanto(quanto.qint8, BF16),
    "gguf Q4_0 float32": lambda: by_gguf("Q4_0", FP32),
    "gguf Q5_0 float16": lambda: by_gguf("Q5_0", FP16),
    "gguf Q8_0 bfloat16": lambda: by_gguf("Q8_0", BF16),
    "gguf TQ1_0 bfloat16": lambda: by_gguf("TQ1_0", BF16),
}


def arrays() -> Iterator[tuple[str, np.ndarray]]:
    for name, make in MAKERS.items():
        made = make().detach().reshape(ROWS, COLUMNS).contiguous()
        is_bfloat16 = made.dtype == BF16
        yield name, made.view(torch.int16).numpy().view("<u2") if is_bfloat16 else made.numpy()


if __name__ == "__main__":
    np.savez_compressed(FILE, **dict(arrays()))
