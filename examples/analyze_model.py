"""Say what is in a model's weights, and why they get as small as they do; draw pictures of it.

    python examples/analyze_model.py [MODEL [FOLDER]]

MODEL is whatever `bf16codecs.open_model` opens; by default, the model that ships with the package.
Pictures go to FOLDER, and need matplotlib: pip install 'bf16codecs[plot]'.
"""

import sys
from importlib.resources import files
from pathlib import Path

import bf16codecs
from bf16codecs import analysis


def tell(found: analysis.Analysis) -> None:
    """Print what was found, in bits a value."""
    print(f"{'tensors of':<12} {'count':>5} {'exponent':>8} {'rest':>6} {'fast':>7} {'best':>7}")
    for group in [*found.kinds, found.model]:
        own = group.statistics.entropies
        if own.exponent is None or own.sign_and_mantissa is None:
            continue  # integers, and mantissas too long to count
        print(
            f"{group.kind:<12} {group.tensors:>5} {own.exponent:>8.2f}"
            f" {own.sign_and_mantissa:>6.2f} {group.bits['arithmetic']:>7.2f}"
            f" {group.bits['arithmetic best']:>7.2f}"
        )
    for sentence in analysis.reasons(found.model):
        print(sentence)
    largest = sorted(found.tensors, key=lambda t: -t.statistics.values)[:10]
    worst = max(largest, key=lambda t: t.bits["arithmetic best"])
    bits = worst.bits["arithmetic best"]
    print(f"Of the largest, the hardest to compress is {worst.name}: {bits:.2f} bits a value.")


def draw(found: analysis.Analysis, folder: Path) -> None:
    """Write a few pictures."""
    from bf16codecs.analysis import plots

    folder.mkdir(exist_ok=True)
    pictures = {
        "exponents": plots.exponents,
        "high_byte": plots.bytes_histogram,
        "set_bits": plots.set_bits,
    }
    for name, picture in pictures.items():
        plots.save(picture(found.model), folder / f"{name}.png", "png")
    print(f"{len(pictures)} pictures in {folder}")


def main(model: str = "", folder: str = "") -> None:
    found = analysis.analyze(model or files(bf16codecs) / "data" / "demo.safetensors")
    tell(found)
    if folder:
        draw(found, Path(folder))


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.exit("usage: analyze_model.py [MODEL [FOLDER]]")
    try:
        main(*sys.argv[1:])
    except (bf16codecs.errors.BF16CodecsError, ImportError, OSError, ValueError) as error:
        sys.exit(f"analyze_model.py: {error}")
