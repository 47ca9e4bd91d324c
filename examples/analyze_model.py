"""Analyze the statistics of a model's weights, explain how far they compress, and plot them.

    python examples/analyze_model.py [MODEL [FOLDER]]

MODEL is a path or address for `bf16codecs.open_model`; by default, the package's demo model. Plots
are written to FOLDER, and need matplotlib: pip install 'bf16codecs[plot]'.
"""

import sys
from importlib.resources import files
from pathlib import Path

import bf16codecs
from bf16codecs import analysis


def report(result: analysis.Analysis) -> None:
    """Print the results, in bits per value."""
    print(f"{'tensors of':<12} {'count':>5} {'exponent':>8} {'rest':>6} {'fast':>7} {'best':>7}")
    for group in [*result.kinds, result.model]:
        entropies = group.statistics.entropies
        if entropies.exponent is None or entropies.sign_and_mantissa is None:
            continue  # integers, and mantissas too long to count
        print(
            f"{group.kind:<12} {group.tensors:>5} {entropies.exponent:>8.2f}"
            f" {entropies.sign_and_mantissa:>6.2f} {group.bits['arithmetic']:>7.2f}"
            f" {group.bits['arithmetic best']:>7.2f}"
        )
    for sentence in analysis.reasons(result.model):
        print(sentence)
    largest = sorted(result.tensors, key=lambda t: -t.statistics.values)[:10]
    worst = max(largest, key=lambda t: t.bits["arithmetic best"])
    bits = worst.bits["arithmetic best"]
    print(f"{worst.name} compresses least among the largest: {bits:.2f} bits per value.")


def draw(result: analysis.Analysis, folder: Path) -> None:
    """Write a few plots."""
    from bf16codecs.analysis import plots

    folder.mkdir(exist_ok=True)
    functions = {
        "exponents": plots.exponents,
        "high_byte": plots.bytes_histogram,
        "set_bits": plots.set_bits,
    }
    for name, plot in functions.items():
        plots.save(plot(result.model), folder / f"{name}.png", "png")
    print(f"{len(functions)} plots in {folder}")


def main(model: str = "", folder: str = "") -> None:
    result = analysis.analyze(model or files(bf16codecs) / "data" / "demo.safetensors")
    report(result)
    if folder:
        draw(result, Path(folder))


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.exit("usage: analyze_model.py [MODEL [FOLDER]]")
    try:
        main(*sys.argv[1:])
    except (bf16codecs.errors.BF16CodecsError, ImportError, OSError, ValueError) as error:
        sys.exit(f"analyze_model.py: {error}")
