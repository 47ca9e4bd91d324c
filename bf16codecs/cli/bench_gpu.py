"""The `bench` command with `--device`: tables and reports of a GPU."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bf16codecs import bench as benchmarks
from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.messages import counted
from bf16codecs._base.tables import Column, format_size, printable
from bf16codecs.bench.defaults import DEFAULT_NBYTES, GPU_REPEATS, QUICK_GPU_NBYTES
from bf16codecs.cli.bench_tables import about_data, rate, show_host, status_line
from bf16codecs.cli.console import say, show
from bf16codecs.cli.reports import write_json, write_text
from bf16codecs.cli.tables import Table

if TYPE_CHECKING:
    from bf16codecs.bench.gpu.results import Gpu, GpuResult, Unmeasured
    from bf16codecs.bench.gpu.study import GpuStudy

__all__ = ["DEVICE", "bench_gpu"]


class _About(NamedTuple):
    """The title of a table, and the reference that its rates are compared with."""

    title: str
    reference: str


# The table with this reference has no column for planes.
_FILE = "file"
_TABLES = {
    "decode": _About("Device to device", "memcpy"),
    "send": _About("Host to device, from pinned memory", "raw"),
    "load": _About("Model files in the page cache to device", _FILE),
}
_NOTES = (
    "GB/s of decoded data, or of copied data for memcpy: medians, and the lowest and highest; and"
    " ratios to the reference in the same round. The GPU's clock times the first table, the host's"
    " clock the others.",
    "wide, constant: the tensors with other numbers. encode_delta: differences to a base on the GPU"
    " that differs by noise of a hundredth of a tensor's deviation.",
)


class _Device(click.ParamType):
    """A GPU, as PyTorch names it: ``cuda``, ``cuda:1``."""

    name = "device"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Return its number."""
        kind, _, number = str(value).partition(":")
        is_number = number.isascii() and number.isdigit() and len(number) < 5
        if kind != "cuda" or not (is_number or value == "cuda"):
            self.fail(f"{value!r:.80} is not a GPU, such as cuda or cuda:1", param, ctx)
        return int(number or 0)


DEVICE = _Device()


def bench_gpu(
    src: str,
    ordinal: int,
    *,
    size: int | None,
    repeats: int | None,
    quick: bool,
    only: Sequence[str],
    csv_file: str | None,
    json_file: str | None,
) -> None:
    """Measure decoding on a GPU, print each row when it is measured, and write reports.

    Parameters
    ----------
    src
        The model.
    ordinal
        Number of the GPU.
    size, repeats, quick, only, csv_file, json_file
        Options of `bench`.
    """
    from bf16codecs.bench.gpu.results import gpu_machine, host_machine
    from bf16codecs.bench.gpu.study import GpuStudy
    from bf16codecs.bench.gpu.work import default_nbytes
    from bf16codecs.cuda.device import Device

    _interrupt.check()  # no signal is raised while modules are imported
    device = Device.of(ordinal)
    if size is None:
        size = default_nbytes(device)
        size = min(size, QUICK_GPU_NBYTES) if quick else size
    sample = benchmarks.sample_of(src, min(size, DEFAULT_NBYTES))
    study = GpuStudy(device, sample, size, repeats or GPU_REPEATS, only)
    _check_names(study, only)
    shows = "-" not in (csv_file, json_file)
    gpu = gpu_machine(device)
    where = host_machine()
    if shows:
        show_host(where, where.threads)
        _show_gpu(gpu)
        say(about_data(sample))
    results, unmeasured = _measure(study, shows)
    if shows:
        _show_notes(unmeasured)
    if csv_file is not None:
        write_text(_csv(results), csv_file)
    document = {
        "machine": asdict(where),
        "gpu": {**asdict(gpu), "kernels": {n: k._asdict() for n, k in gpu.kernels.items()}},
        "dtype": sample.dtype,
        "results": _rows(results),
        "failures": [_reason(u) for u in unmeasured if u.failed],
        "left_out": [_reason(u) for u in unmeasured if not u.failed],
    }
    write_json(document, json_file)
    _refuse_failures(results, unmeasured)


def _check_names(study: GpuStudy, only: Sequence[str]) -> None:
    """Refuse names that match no codec."""
    if not all(only):
        raise click.UsageError("the name of a codec is empty: leave it out to measure all")
    if only and not study.wanted():
        measurable = ", ".join(replace(study, only=()).wanted())
        raise click.UsageError(
            f"no word of a codec's name begins with {' or '.join(map(repr, only))}; there are"
            f" {'; '.join([measurable, *(f'{peer.name}: {peer.why}' for peer in study.absent())])}"
        )


def _measure(study: GpuStudy, shows: bool) -> tuple[list[GpuResult], list[Unmeasured]]:
    """Measure all tables, and print them if `shows`."""
    from bf16codecs.bench.gpu.results import GpuResult

    results: list[GpuResult] = []
    unmeasured: list[Unmeasured] = []
    with status_line() as status, study.tables(status) as tables:
        for kind, measured in tables.items():
            table = None
            for found in measured():
                if status is not None:
                    status("")
                if shows and table is None:
                    show("")
                    say(_TABLES[kind].title)
                    names = study.names(kind)
                    table = Table(_columns(_TABLES[kind].reference), [(name,) for name in names])
                if isinstance(found, GpuResult):
                    results.append(found)
                else:
                    unmeasured.append(found)
                if table is not None and (row := _row(found)):
                    table.row(row[: -1 if kind == "load" else None])
            if table is not None:
                table.end()
    return results, unmeasured


def _columns(reference: str) -> list[Column]:
    return [
        Column("from" if reference == _FILE else "codec"),
        Column("data", rank=2, least=9),
        Column("rounds", rank=3),
        Column("ratio", least=9),
        Column("GB/s", least=7),
        Column("spread", rank=4, least=15),
        Column(f"to {reference}"),
        Column("round trip", is_text=True, rank=1, least=9),
        *([] if reference == _FILE else [Column("planes", is_text=True, rank=5)]),
    ]


def _row(found: GpuResult | Unmeasured) -> Sequence[str]:
    """Return a row; empty for codecs that only the notes below the tables mention."""
    from bf16codecs.bench.gpu.results import GpuResult

    if not isinstance(found, GpuResult):
        return (found.name, *[""] * 6, "failed", "") if found.failed else ()
    return (
        found.name,
        format_size(found.nbytes),
        str(found.rounds),
        f"{found.ratio:.3f}",
        rate(found.gbps),
        f"{rate(found.gbps_min)}-{rate(found.gbps_max)}",
        f"{found.to_reference:.3f}",
        "bit-exact" if found.exact else "DIFFERS",
        found.planes,
    )


def _show_gpu(gpu: Gpu) -> None:
    """Print a description of the GPU, and the resources that the kernels need."""
    say(
        f"GPU {gpu.ordinal}: {gpu.name}, compute capability {gpu.compute_capability},"
        f" {counted(gpu.multiprocessors, 'multiprocessor')}, {format_size(gpu.free_nbytes)} of"
        f" {format_size(gpu.total_nbytes)} free; driver for CUDA {gpu.driver}, NVRTC {gpu.nvrtc}"
    )
    kernels = (
        f"{name} {counted(needs.registers, 'register')}, {needs.shared} B shared,"
        f" {needs.local} B local"
        for name, needs in gpu.kernels.items()
    )
    say(f"Kernels: {'; '.join(kernels)}")


def _show_notes(unmeasured: Iterable[Unmeasured]) -> None:
    """Print notes on the tables, and what was not measured and why."""
    show("")
    for note in _NOTES:
        say(note)
    reasons = dict.fromkeys((u.name, u.why, u.failed) for u in unmeasured)
    for name, why, failed in reasons:
        say(printable(f"{name} failed: {why}" if failed else f"Not measured: {name}; {why}"))


def _rows(results: Iterable[GpuResult]) -> list[dict[str, Any]]:
    return [asdict(result) | {"ratio": result.ratio} for result in results]


def _reason(found: Unmeasured) -> dict[str, str]:
    return {"table": found.table, "name": found.name, "message": found.why}


def _csv(results: Iterable[GpuResult]) -> str:
    """Return results as CSV text, one line per contender."""
    rows, text = _rows(results), io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["table"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _refuse_failures(results: Iterable[GpuResult], unmeasured: Iterable[Unmeasured]) -> None:
    """Raise if a round trip was not exact, or a codec failed."""
    if not all(result.exact for result in results):
        raise ValueError("the GPU returned wrong data")
    failed = dict.fromkeys(found.name for found in unmeasured if found.failed)
    if failed:
        raise ValueError(f"not measured because they failed: {', '.join(failed)}")
