"""Compiles the CUDA kernels for all kinds of GPUs: `look_into_kernels.py [CAPABILITY...]`.

That needs NVRTC and nvdisasm, and neither a GPU nor a driver. It prints what each kernel takes of a
GPU, and fails if one has more variables than registers, which costs more than it saves, or if the
threads of a warp may have to wait for each other: that makes kernels nearly twice as long.
"""

from __future__ import annotations

import importlib.metadata
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from bf16codecs.cuda.compiling import architectures, compile_source
from bf16codecs.cuda.sources import kernel_names, kernel_sources

# V100, T4, A100, A10, L4, H100, B200, RTX 50.
CAPABILITIES = 70, 75, 80, 86, 89, 90, 100, 120
# What the assembler says of a function, and then, of a kernel alone, what it uses.
FUNCTION = re.compile(
    r"Function properties for (\S+)\s+ptxas\s+\.?\s*(\d+) bytes stack frame, "
    r"(\d+) bytes spill stores, (\d+) bytes spill loads"
    r"(?:\s+ptxas info\s*: Used (\d+) registers([^\n]*))?"
)
SHARED = re.compile(r"(\d+) bytes smem")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+\S", re.MULTILINE)
# Goes elsewhere unless all threads of a warp are there, who then have to wait for each other.
WAITS = "BRA.DIV"
# From here on, compilers see that what all threads were given by one of them is the same for all.
LEAST_WITHOUT_WAITS = 90
# What nvdisasm knows.
LEAST_DISASSEMBLED = 75


class Function(NamedTuple):
    """What a function takes."""

    name: str
    stack: int
    spilled: int
    registers: int | None
    shared: int

    def __str__(self) -> str:
        registers = "    inner" if self.registers is None else f"{self.registers:>3} regs."
        return (
            f"{registers} {self.shared:>6} B shared {self.stack:>5} B stack "
            f"{self.spilled:>5} B spilled  {self.name}"
        )


def short(symbol: str) -> str:
    """Return the function's own name, of one that C++ has made longer."""
    if not symbol.startswith("_ZN"):
        return symbol
    name, rest = "", symbol[3:]
    while match := re.match(r"\d+", rest):
        end = match.end() + int(match[0])
        name, rest = rest[match.end() : end], rest[end:]
    types = re.match(r"I(\w+?)E", rest)
    return f"{name}<{types[1]}>" if types else name


def functions(report: str) -> list[Function]:
    """Return what the assembler reports."""
    found = []
    for name, stack, stores, loads, registers, rest in FUNCTION.findall(report):
        shared = sum(map(int, SHARED.findall(rest)))
        used = int(registers) if registers else None
        found.append(Function(short(name), int(stack), int(stores) + int(loads), used, shared))
    return found


def disassembled(code: bytes) -> str:
    """Return a cubin's instructions."""
    files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    program = next(file for file in files if file.name.split(".")[0] == "nvdisasm").locate()
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(code)
        command = [str(program), "-c", str(cubin)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def look_into(kernel: str, capability: int) -> list[str]:
    """Compile a kernel, print what its functions take, and return what is wrong with them."""
    report = io.StringIO()
    compiled = compile_source(divmod(capability, 10), kernel_sources(kernel), report)
    found = functions(report.getvalue())
    if kernel not in {function.name for function in found}:
        raise SystemExit(f"sm_{capability}: nothing is said of {kernel}")
    for function in found:
        print(f"  {function}", flush=True)
    wrong = [f"{f.name} for sm_{capability} spills variables" for f in found if f.spilled]
    if capability >= LEAST_DISASSEMBLED:
        text = disassembled(compiled.code)
        instructions, waits = len(INSTRUCTION.findall(text)), text.count(WAITS)
        print(f"  {instructions} instructions, {waits} places to wait at", flush=True)
        if waits and capability >= LEAST_WITHOUT_WAITS:
            wrong.append(f"{kernel} for sm_{capability} has threads wait for each other")
    return wrong


def main(wanted: list[int]) -> None:
    """Compile for each of them that the compiler knows."""
    known = architectures()
    wrong = []
    for capability in wanted:
        print(f"sm_{capability}{'' if capability in known else ': not of this compiler'}")
        for kernel in kernel_names() if capability in known else []:
            wrong += look_into(kernel, capability)
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or list(CAPABILITIES))
