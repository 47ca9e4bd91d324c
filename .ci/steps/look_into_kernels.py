"""Compiles the CUDA kernels for all kinds of GPUs: `look_into_kernels.py [CAPABILITY...]`.

That needs NVRTC, and neither a GPU nor a driver. It prints what each kernel takes of a GPU, and
fails if one has more variables than registers, which costs more than it saves.
"""

from __future__ import annotations

import io
import re
import sys
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


def look_into(kernel: str, capability: int) -> list[str]:
    """Compile a kernel, print what its functions take, and return which spill."""
    report = io.StringIO()
    compile_source(divmod(capability, 10), kernel_sources(kernel), report)
    found = functions(report.getvalue())
    if kernel not in {function.name for function in found}:
        raise SystemExit(f"sm_{capability}: nothing is said of {kernel}")
    for function in found:
        print(f"  {function}", flush=True)
    return [f"{function.name} for sm_{capability}" for function in found if function.spilled]


def main(wanted: list[int]) -> None:
    """Compile for each of them that the compiler knows."""
    known = architectures()
    spilling = []
    for capability in wanted:
        print(f"sm_{capability}{'' if capability in known else ': not of this compiler'}")
        for kernel in kernel_names() if capability in known else []:
            spilling += look_into(kernel, capability)
    if spilling:
        raise SystemExit(f"variables without a register: {', '.join(spilling)}")


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or list(CAPABILITIES))
