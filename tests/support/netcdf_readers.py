"""netCDF-C with the plugin, from Python's netCDF4 and from C, each in a process of its own.

netCDF4 brings a libnetcdf and a libhdf5 of its own. The one in C is whose `nc-config` is found
first on PATH.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import plugin

C_SOURCE = Path(__file__).with_name("read_netcdf.c")

# Writes the bytes of each variable to a file of its name, and prints why not, as C_SOURCE does.
_PYTHON = """
import pathlib, sys
import netCDF4
with netCDF4.Dataset(sys.argv[1]) as file:
    file.set_auto_maskandscale(False)
    for name, variable in file.variables.items():
        try:
            values = variable[...]
        except RuntimeError as error:
            print(f"{name}: {error}")
        else:
            native = values.astype(values.dtype.newbyteorder("="), order="C")
            pathlib.Path(sys.argv[2], name).write_bytes(native.tobytes())
"""


def url(store: Path) -> str:
    """Return netCDF's URL of a Zarr store in a folder."""
    return f"file://{store}#mode=zarr,file"


def environment(*plugins: str) -> dict[str, str]:
    """Return an environment in which netCDF finds this plugin and those in other folders."""
    folders = os.pathsep.join([plugin.PLUGIN_FOLDER, *plugins])
    return {**os.environ, "HDF5_PLUGIN_PATH": folders, "LC_ALL": "C"}


def has_netcdf4() -> bool:
    return importlib.util.find_spec("netCDF4") is not None


def own_plugins() -> str:
    """Return the folder of the filters that come with the Python package netCDF4."""
    spec = importlib.util.find_spec("netCDF4")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "plugins")


def config(*options: str) -> list[str]:
    done = subprocess.run(["nc-config", *options], capture_output=True, text=True, check=True)
    return done.stdout.split()


@functools.cache
def no_programs() -> str:
    """Return why netCDF-C's programs cannot read compressed arrays here, or an empty text."""
    for name in ("cc", "nc-config", "ncdump", "nccopy", "ncgen"):
        if shutil.which(name) is None:
            return f"{name} is not installed"
    (folder,) = config("--libdir")
    for library in Path(folder).glob("libnetcdf.*"):
        if b"NCZ_get_codec_info" in library.read_bytes():
            return ""
    return f"{folder} has no libnetcdf with filters for Zarr: Debian's is built without plugins"


@functools.cache
def _c_program(folder: Path) -> Path:
    program = folder / "read_netcdf"
    (libraries,) = config("--libdir")
    command = ["cc", "-Wall", "-Werror", str(C_SOURCE), "-o", str(program)]
    command += [*config("--cflags"), f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lnetcdf"]
    subprocess.run(command, check=True)
    return program


class Reader:
    """One of the two: ``"python"`` or ``"c"``."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.command = [sys.executable, "-c", _PYTHON]
        if kind == "c":
            self.command = [str(_c_program(folder))]

    def read(
        self, place: object, folder: Path, plugins: Iterable[str] = ()
    ) -> tuple[dict[str, bytes | str], str]:
        """Return the bytes of variables, or why they could not be read; and standard error."""
        folder.mkdir()
        done = subprocess.run(
            [*self.command, str(place), str(folder)],
            capture_output=True,
            text=True,
            env=environment(*plugins),
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, bytes | str] = {p.name: p.read_bytes() for p in folder.iterdir()}
        found.update(line.split(": ", 1) for line in done.stdout.splitlines())
        return found, done.stderr


def tool(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program of netCDF that finds the plugin."""
    done = subprocess.run(
        [str(a) for a in arguments], capture_output=True, text=True, env=environment(), timeout=120
    )
    assert done.returncode == status, done.stderr + done.stdout
    return done
