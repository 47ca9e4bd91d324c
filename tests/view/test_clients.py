"""Other clients are served beside those that do not read, do not finish, or are very many."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

import viewer_clients
from bf16codecs.view import connections
from checkout import package_environment
from measured_reads import linux
from viewer_clients import LARGE, Application, asked, served


def is_closed(own: socket.socket) -> bool:
    """Wait for the end of a connection on which no data may arrive."""
    try:
        return own.recv(1) == b""
    except ConnectionError:
        return True


@linux
def test_memory_for_clients_that_do_not_read():
    """99 answers of 8 MiB wait; 64 MiB of them are kept."""
    done = subprocess.run(
        [sys.executable, viewer_clients.__file__],
        env=package_environment(PYTHONSAFEPATH=""),
        stdout=subprocess.PIPE,
        check=True,
    )
    assert int(done.stdout) < 150_000


def test_a_client_that_does_not_read_is_given_up(monkeypatch):
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.05)
    app = Application()
    with served(app) as (_, clients):
        clients.open(asked("/large")).recv(1)
        assert app.given_up.wait(30)


def test_a_client_that_reads_gets_all(monkeypatch):
    monkeypatch.setattr(connections, "MOST_WAITING", 1)
    with served(Application()) as (client, clients):
        for _ in range(3):
            clients.open(asked("/large")).recv(1)
            assert len(client.get("/large")[2]) == LARGE


def test_the_longest_waiting_client_makes_room(monkeypatch):
    monkeypatch.setattr(connections, "MOST_WAITING", LARGE)
    app = Application()
    with served(app) as (_, clients):
        clients.open(asked("/large")).recv(1)
        assert not app.given_up.is_set()
        last = clients.open(asked("/large"))
        last.recv(1)
        assert app.given_up.wait(30)
        received = 1
        while received < LARGE:
            received += len(last.recv(1 << 16))


def test_clients_that_do_not_read_make_room(monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 5)
    with served(Application()) as (client, clients):
        for _ in range(5):
            clients.open(asked("/large")).recv(1)
        assert client.get("/")[2] == b"word"


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: loc", asked("/")])
def test_connections_without_a_request_make_room(monkeypatch, begun):
    """The longest waiting ones are closed, however many bytes of a request they have sent."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 5)
    with served(Application()) as (client, clients):
        for _ in range(12):
            own = clients.open(begun)
            if begun == asked("/"):
                while b"word" not in own.recv(1 << 16):
                    pass
        for _ in range(3):
            assert client.get("/")[2] == b"word"
        for own in clients.opened[:8]:
            assert is_closed(own)


def test_requests_that_are_too_long():
    with served(Application()) as (client, clients):
        for part in (b"GET /" + b"x" * 200_000, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000):
            own = clients.open()
            try:
                own.sendall(part)
                assert own.recv(1 << 16).startswith(b"HTTP/1.1 400")
            except ConnectionError:  # reset before all of it was sent
                pass
        assert client.get("/")[2] == b"word"


def test_many_requests_at_once():
    """The second is not answered before the first answer has been read."""
    app = Application()
    with served(app) as (client, clients):
        clients.open(asked("/large", 500)).recv(1)
        assert client.get("/")[2] == b"word"
        assert client.get("/")[2] == b"word"
        assert app.answers == 3


def test_requests_that_are_aborted():
    app = Application()
    with served(app) as (client, clients):
        for _ in range(50):
            clients.open(asked("/large")).close()
        assert client.get("/")[2] == b"word"
        assert app.given_up.wait(30)


def test_a_body_without_an_end():
    """The server reads and drops it after an answer that does not use it."""
    app = Application()
    with served(app) as (client, clients):
        own = clients.open(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(200):
            own.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
        assert client.get("/")[2] == b"word"
        assert app.answers == 2
