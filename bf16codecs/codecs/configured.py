"""Base of all codecs: a numcodecs codec that is also a dict, as Zarr format 3 takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Self

from numcodecs.abc import Codec

__all__ = ["ConfiguredCodec"]


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(f"{type(self).__name__} is immutable")


class FrozenDict(dict[str, Any]):
    """An immutable dict, so that a codec always matches the data it has encoded."""

    __setitem__: Any = _refuse
    __delitem__: Any = _refuse
    __ior__: Any = _refuse
    clear: Any = _refuse
    pop: Any = _refuse
    popitem: Any = _refuse
    setdefault: Any = _refuse
    update: Any = _refuse

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


class ConfiguredCodec(Codec, FrozenDict):
    """A codec that is its configuration.

    As a dict it is ``{"name": codec_id, "configuration": {...}}``, the codec's metadata in Zarr
    format 3. It is immutable.

    Stored metadata contain the subclasses' parameters. So these keep their names, order and
    defaults; a new one comes last, with a default that keeps the old behaviour, and is left out
    where it has that default: older releases refuse what they do not know.
    """

    codec_id: ClassVar[str]
    #: Parameters that are left out where they have their default.
    _left_out: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **parameters: Any) -> None:
        dict.__init__(self, name=self.codec_id, configuration=FrozenDict(parameters))

    def get_config(self) -> dict[str, Any]:
        """Return the parameters with the codec's id, as numcodecs and Zarr format 2 store them."""
        return {"id": self.codec_id, **self["configuration"]}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make a codec from `get_config`'s result, with or without ``id``."""
        parameters = dict(config)
        codec_id = parameters.pop("id", cls.codec_id)
        if codec_id != cls.codec_id:
            raise ValueError(f"the configuration is for {codec_id!r}, not {cls.codec_id!r}")
        unknown = parameters.keys() - cls()["configuration"].keys() - cls._left_out
        if unknown:
            names = ", ".join(sorted(map(repr, unknown)))
            raise ValueError(f"{cls.codec_id}: unknown configuration: {names}")
        return cls(**parameters)

    # numcodecs compares configurations and defines no hash. The dict holds the configuration.
    __eq__ = dict.__eq__

    def __hash__(self) -> int:  # type: ignore[override]
        return hash((self.codec_id, *self["configuration"].items()))

    def __repr__(self) -> str:
        parameters = ", ".join(f"{k}={v!r}" for k, v in self["configuration"].items())
        return f"{type(self).__name__}({parameters})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_config, (dict(self["configuration"]),)
