"""Writes tests/codecs/library_weights.npz: weights that libraries quantised and multiplied out.

    pip install torch bitsandbytes compressed-tensors gguf hqq optimum-quanto torchao
    python tests/support/make_library_weights.py

Arrays that the file has stay as they are. They were made with bitsandbytes 0.50.2,
compressed-tensors 0.20.0, gguf of llama.cpp, hqq 0.2.8, quanto 0.2.7 and torchao 0.18.0. Tests need
none of them. Arrays of bfloat16 are stored as unsigned integers, with "bfloat16" in their names.
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
from hqq.core.quantize import Quantizer
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.quantization import quant_primitives as primitives
from torchao.quantization.granularity import PerGroup
from torchao.quantization.quant_primitives import MappingType

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


#: Where the bytes of a block of a K-quant have its numbers of binary16, and these; which bytes are
#: scales, and the bits to set so that they are large.
K_QUANTS = {
    "Q2_K": ({80: 0.002, 82: 0.003}, slice(0, 16), 0x88),
    "Q3_K": ({108: 0.0004}, slice(104, 108), 0xFF),
    "Q4_K": ({0: 0.0001, 2: 0.0007}, slice(4, 12), 0xA0),
    "Q5_K": ({0: 0.00005, 2: 0.0007}, slice(4, 12), 0xA0),
    "Q6_K": ({208: 0.00001}, slice(192, 208), 0x40),
}


def k_quant(name: str, dtype: torch.dtype) -> torch.Tensor:
    """Return what any codes and scales are multiplied out to: gguf has no code that makes them."""
    kind = gguf.GGMLQuantizationType[name]
    items, size = gguf.GGML_QUANT_SIZES[kind]
    units, scales, large = K_QUANTS[name]
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (ROWS * COLUMNS // items, size), np.uint8)
    blocks[:, scales] |= large
    for at, number in units.items():
        numbers = number * rng.uniform(0.5, 1.5, (len(blocks), 1))
        blocks[:, at : at + 2] = numbers.astype(np.float16).view(np.uint8)
    return torch.from_numpy(gguf.quants.dequantize(blocks, kind)).to(dtype)


def by_hqq(bits: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    codes, meta = Quantizer.quantize(
        normal(), nbits=bits, group_size=size, axis=1, device="cpu", compute_dtype=dtype
    )
    for name, value in meta.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            meta[name] = value.to(dtype)
    made = Quantizer.dequantize(codes, {**meta, "compute_dtype": dtype})  # as HQQLinear does
    assert made.dtype == dtype
    return made


def tinygemm(dtype: torch.dtype) -> torch.Tensor:
    """Return what int4 of torchao is multiplied out to; its kernels need a GPU."""
    levels = {"block_size": (1, 128), "quant_min": 0, "quant_max": 15}
    weights, kind = normal().to(dtype), torch.int32
    scale, zero = primitives._choose_qparams_affine_tinygemm(
        weights, MappingType.ASYMMETRIC, target_dtype=kind, scale_dtype=dtype,
        zero_point_dtype=dtype, eps=1e-6, **levels,
    )  # fmt: skip
    codes = primitives._quantize_affine_tinygemm(
        weights, scale=scale, zero_point=zero, output_dtype=kind, **levels
    )
    return primitives._dequantize_affine_tinygemm(
        codes, scale=scale, zero_point=zero, input_dtype=kind, output_dtype=dtype, **levels
    )


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
    "torchao tinygemm bfloat16": lambda: tinygemm(BF16),
    "torchao mxfp4 bfloat16": lambda: MXTensor.to_mx(
        normal().to(BF16), torch.float4_e2m1fn_x2, 32
    ).dequantize(BF16),
    "quanto int8 bfloat16": lambda: by_quanto(quanto.qint8, BF16),
    "quanto int4 bfloat16": lambda: by_quanto(quanto.qint4, BF16),
    "quanto int2 float32": lambda: by_quanto(quanto.qint2, FP32),
    "quanto int2 bfloat16": lambda: by_quanto(quanto.qint2, BF16),
    "hqq int4 bfloat16": lambda: by_hqq(4, 64, BF16),
    "hqq int4 float16": lambda: by_hqq(4, 64, FP16),
    "gguf Q4_0 float32": lambda: by_gguf("Q4_0", FP32),
    "gguf Q5_0 float16": lambda: by_gguf("Q5_0", FP16),
    "gguf Q8_0 bfloat16": lambda: by_gguf("Q8_0", BF16),
    "gguf TQ1_0 bfloat16": lambda: by_gguf("TQ1_0", BF16),
    "gguf Q4_1 float16": lambda: by_gguf("Q4_1", FP16),
    "gguf Q5_1 float16": lambda: by_gguf("Q5_1", FP16),
    "gguf Q2_K float32": lambda: k_quant("Q2_K", FP32),
    "gguf Q2_K bfloat16": lambda: k_quant("Q2_K", BF16),
    "gguf Q3_K float16": lambda: k_quant("Q3_K", FP16),
    "gguf Q4_K float32": lambda: k_quant("Q4_K", FP32),
    "gguf Q4_K bfloat16": lambda: k_quant("Q4_K", BF16),
    "gguf Q5_K float16": lambda: k_quant("Q5_K", FP16),
    "gguf Q6_K bfloat16": lambda: k_quant("Q6_K", BF16),
}


def arrays() -> Iterator[tuple[str, np.ndarray]]:
    with np.load(FILE) as before:
        kept = dict(before)
    for name, make in MAKERS.items():
        if name in kept:
            yield name, kept[name]
            continue
        made = make().detach().reshape(ROWS, COLUMNS).contiguous()
        is_bfloat16 = made.dtype == BF16
        yield name, made.view(torch.int16).numpy().view("<u2") if is_bfloat16 else made.numpy()


if __name__ == "__main__":
    np.savez_compressed(FILE, **dict(arrays()))
