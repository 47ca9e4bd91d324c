"""The page and its data as an ASGI application, which answers with JSON and pictures.

It keeps no sessions: each request names everything that it needs, so browsers are independent.
"""

from __future__ import annotations

import errno
import json
import os
import traceback
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import Any

import numpy as np

from bf16codecs._base.messages import from_extra, one_line
from bf16codecs._base.version import __version__
from bf16codecs.analysis.checkpoints import Checkpoints
from bf16codecs.errors import BF16CodecsError, StepNotFoundError, TensorNotFoundError
from bf16codecs.model.model import Model
from bf16codecs.model.tensor import LazyTensor
from bf16codecs.view.details import Details, counterpart, is_remote
from bf16codecs.view.pictures import CHANGES, SHOWN, picture
from bf16codecs.view.sheets import Region, Sheet, View, parsed_count

with from_extra("view", "bf16codecs.view"):
    from anyio import CapacityLimiter, to_thread
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, JSONResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

__all__ = ["HOSTS", "application"]

#: Host names that browsers on this machine use. A page of another site sends the name of that site,
#: even if that name resolves to this machine.
HOSTS = ("127.0.0.1", "localhost")

# About how many bytes are read for a first picture and for a finer one: of local models, and of
# those on servers. 16 MiB take 0.2 s on two cores, most of it for the sums.
_BUDGETS = ((16 << 20, 64 << 20), (16 << 20, 48 << 20))
# The cost of the block that a row is in, usually of 2**18 items. Decoding a local block takes as
# long as adding up 64 KiB; of a block on a server, all bytes are fetched.
_BLOCK_BYTES, _BLOCK_ITEMS = 1 << 16, 1 << 18
_MOST_CELLS = 2048
# Pictures that are drawn at the same time, each of which may briefly take 100 MB.
_AT_A_TIME = 2

# The page loads nothing from other sites, and no other page may frame it.
_HEADERS = [
    (name.lower().encode(), value.encode())
    for name, value in {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }.items()
]


def application(checkpoints: Checkpoints) -> Starlette:
    """Return an application that serves the page and the data of checkpoints.

    Parameters
    ----------
    checkpoints : Checkpoints
        The models to show. They are opened again whenever a page is loaded.

    Raises
    ------
    ImportError
        If the extra ``view`` is not installed.
    """
    page = str(resources.files("bf16codecs.view") / "page")
    api = _Api(checkpoints)

    def index(request: Request) -> Response:
        return FileResponse(f"{page}/index.html")

    return Starlette(
        routes=[
            Route("/", index),
            Route("/api/model", api.answer(api.model)),
            Route("/api/contents", api.answer(api.contents)),
            Route("/api/tensor", api.answer(api.tensor)),
            Route("/api/picture", api.answer_slowly(api.picture)),
            Route("/api/statistics", api.answer_slowly(api.statistics)),
            Route("/api/changes", api.answer_slowly(api.changes)),
            Route("/api/history", api.answer_slowly(api.history)),
            Mount("/page", StaticFiles(directory=page)),
        ],
        middleware=[
            Middleware(_Guard),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False),
        ],
    )


class _Guard:
    """Adds headers to each answer, and refuses requests by pages of other sites."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        app: Callable[..., Awaitable[None]] = self._app
        asked = dict(scope.get("headers", ()))
        is_api = scope.get("path", "").startswith("/api/")
        if is_api and asked.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            app = JSONResponse({"error": "asked for by the page of another site"}, 403)
        await app(scope, receive, guarded)


Query = Mapping[str, str]
Endpoint = Callable[[Request], Awaitable[Response]]


class _Api:
    """Answers the page's requests, whose arguments are in the address."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._details = Details(checkpoints)
        self._free = CapacityLimiter(_AT_A_TIME)

    def answer(self, find: Callable[[Query], Any]) -> Endpoint:
        """Return an endpoint that answers in a thread; errors become a line of JSON."""

        async def endpoint(request: Request) -> Response:
            return await to_thread.run_sync(_answered, find, request.query_params)

        return endpoint

    def answer_slowly(self, find: Callable[[Query], Any]) -> Endpoint:
        """Return an endpoint that reads values: few at a time, and only while the page waits."""

        async def endpoint(request: Request) -> Response:
            async with self._free:
                if await request.is_disconnected():  # the page wants another picture by now
                    return Response(status_code=204)
                return await to_thread.run_sync(_answered, find, request.query_params)

        return endpoint

    def model(self, query: Query) -> dict[str, Any]:
        """Open the checkpoints again, which a page requests when it is loaded, and list them."""
        try:
            checkpoints = self._details.checkpoints.reopened()
        except FileNotFoundError as e:
            # Without the names of other files, which the message suggests to a user of the path.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), e.filename) from e
        self._details = Details(checkpoints)
        return {
            "where": checkpoints.where,
            "steps": checkpoints.steps,
            "base": checkpoints.base,
            "is_remote": any(is_remote(checkpoints[label]) for label in checkpoints.labels),
            "version": __version__,
        }

    def contents(self, query: Query) -> dict[str, Any]:
        """Return the tensors of a checkpoint, with their sizes."""
        return self._details.contents(_argument(query, "step"), query.get("sizes") == "ask")

    def tensor(self, query: Query) -> dict[str, Any]:
        """Return a tensor's dtype, shape and layout."""
        return self._details.tensor(_argument(query, "step"), _argument(query, "tensor"))

    def statistics(self, query: Query) -> dict[str, Any]:
        """Return entropies, histograms and scales."""
        step, name = _argument(query, "step"), _argument(query, "tensor")
        is_whole = query.get("of") == "all"
        return self._details.statistics(step, name, query.get("against"), is_whole)

    def changes(self, query: Query) -> dict[str, Any]:
        """Return the differences between two checkpoints."""
        return self._details.changes(_argument(query, "step"), _argument(query, "against"))

    def history(self, query: Query) -> dict[str, Any]:
        """Return how a tensor changes from checkpoint to checkpoint."""
        return self._details.history(_argument(query, "tensor"))

    def picture(self, query: Query) -> Response:
        """Return the cells of a part of a tensor: see `_drawn`."""
        checkpoints = self._details.checkpoints
        model = checkpoints[_argument(query, "step")]
        tensor: LazyTensor = model[_argument(query, "tensor")]
        show = query.get("show", SHOWN[0])
        other = None
        if show in CHANGES:
            other = counterpart(checkpoints[_argument(query, "against")], tensor)
            if other is None:
                raise ValueError(f"{query['against']} has no tensor of this name, shape and dtype")
        elif show not in SHOWN:
            raise ValueError(f"show must be one of {', '.join(SHOWN + CHANGES)}, not {show!r:.80}")
        return Response(_drawn(_view(query, model, tensor), show, tensor, other))


def _answered(find: Callable[[Query], Any], query: Query) -> Response:
    """Return the answer to a query, or an error."""
    try:
        found = find(query)
        return found if isinstance(found, Response) else JSONResponse(found)
    except (StepNotFoundError, TensorNotFoundError) as e:
        return JSONResponse({"error": one_line(e)}, 404)
    except (BF16CodecsError, OSError) as e:
        return JSONResponse({"error": one_line(e)}, 500)
    except ValueError as e:
        return JSONResponse({"error": one_line(e)}, 400)
    except MemoryError:
        return JSONResponse({"error": "not enough memory"}, 500)
    except Exception as e:  # a bug: the page reports it, and the terminal shows the traceback
        traceback.print_exc()
        return JSONResponse({"error": f"a fault of the viewer: {one_line(e)}"}, 500)


def _argument(query: Query, key: str) -> str:
    if key not in query:
        raise ValueError(f"the address has no {key}")
    return query[key]


def _view(query: Query, model: Model, tensor: LazyTensor) -> View:
    sheet = Sheet(tensor.shape)
    if not sheet.size:
        raise ValueError("it has no values")
    size, remote = tensor.dtype.itemsize, is_remote(model)
    return View(
        sheet=sheet,
        region=Region.of(sheet, query.get("rows"), query.get("columns")),
        height=_cells(query, "height"),
        width=_cells(query, "width"),
        item_size=size,
        budget=_BUDGETS[remote][query.get("detail") == "fine"],
        block_nbytes=_BLOCK_ITEMS * size if remote else _BLOCK_BYTES,
    )


def _cells(query: Query, key: str) -> int:
    text = query.get(key, "512")
    count = parsed_count(text)
    if count is None or not 1 <= count <= _MOST_CELLS:
        raise ValueError(f"{key} must be 1 to {_MOST_CELLS}, not {text!r:.80}")
    return count


def _drawn(view: View, show: str, tensor: LazyTensor, other: LazyTensor | None) -> bytes:
    """Return a picture in the page's binary format.

    It has the length of a header in 4 bytes, little-endian; the header as JSON, padded to a
    multiple of 4; cells, scales of rows, and scales of columns as float32; and states as bytes.
    """
    found = picture(view, show, tensor, other)
    region, (height, width) = view.region, found.cells.shape
    header: dict[str, Any] = {
        "rows": [region.rows.start, region.rows.stop],
        "columns": [region.columns.start, region.columns.stop],
        "height": height,
        "width": width,
        "row_edges": view.row_edges.tolist(),
        "column_edges": view.column_edges.tolist(),
        "is_whole": view.is_whole,
        "items": view.items,
        "errors": found.errors,
        "texts": found.texts,
        "bits": found.bits,
    }
    text = json.dumps(header, allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    arrays = (found.cells, found.row_scales, found.column_scales)
    return b"".join(
        [
            len(text).to_bytes(4, "little"),
            text,
            *(np.ascontiguousarray(array, "<f4").tobytes() for array in arrays),
            found.states.tobytes(),
        ]
    )
