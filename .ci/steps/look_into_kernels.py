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
from bf16codecs.cuda.sources import read_sources

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


def main(wanted: list[int]) -> None:
    """Compile for each of them that the compiler knows."""
    known = architectures()
    sources = read_sources()
    kernels: set[str] = set()
    for content in sources.files.values():
        kernels |= {
            *re.findall(r"__global__\s+void\s+(?:\w+\([^)]*\)\s+)?(\w+)\(", content.decode())
        }
    spilling = []
    for capability in wanted:
        if capability not in known:
            print(f"sm_{capability}: this compiler does not know it")
            continue
        report = io.StringIO()
        code = compile_source(divmod(capability, 10), sources, report)
        used = functions(report.getvalue())
        missing = kernels - {function.name for function in used}
        if missing or not kernels:
            raise SystemExit(f"sm_{capability}: nothing is said of {sorted(missing)}")
        print(f"sm_{capability}: {len(code.code):,} bytes")
        for function in used:
            print(f"  {function}")
        spilling += [f"sm_{capability} {f.name}" for f in used if f.spilled]
    if spilling:
        raise SystemExit(f"registers are spilled: {', '.join(spilling)}")


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or list(CAPABILITIES))
