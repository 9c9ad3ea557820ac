"""The explorer's server: loopback only, a fixed set of answers, and nothing of the disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from paceline.studies.explorer.explorer import Explorer
from paceline.studies.explorer.page import files_of
from paceline.studies.explorer.question import Question
from paceline.studies.page import plain

LOOPBACK = "127.0.0.1"
_LONGEST_PATH = 2000
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


class ExplorerServer(ThreadingHTTPServer):
    """Serves one explorer to this machine's browsers.

    Args:
        explorer: What answers.
        port: Where to listen; 0 for any that is free.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        self.explorer = explorer
        self.files = files_of(explorer)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as problem:
            raise ValueError(f"Port {port} cannot be used: {problem}; try --port 0.") from None

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What a browser may call this server."""
        return (f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}")


class _Handler(BaseHTTPRequestHandler):
    server: ExplorerServer
    server_version, sys_version = "paceline", ""
    protocol_version = "HTTP/1.1"
    # Head and body in one packet, at once: two would wait for each other's acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer with a file of the page or, at ``/answer``, with numbers."""
        # A name that resolves to this machine is not enough: any web page could have one, and its
        # scripts would then read our answers (DNS rebinding).
        if self.headers.get("Host") not in self.server.hosts:
            self._send_json({"error": "ask for localhost"}, HTTPStatus.FORBIDDEN)
            return
        address = urlsplit(self.path)
        if address.path == "/answer":
            self._send_json(*self._answer(address.query))
        elif address.path in self.server.files:
            self._send(*self.server.files[address.path])
        else:
            self._send_json({"error": "there is no such page"}, HTTPStatus.NOT_FOUND)

    def _answer(self, query: str) -> tuple[Any, HTTPStatus]:
        if len(query) > _LONGEST_PATH:
            return {"error": "that is a long question"}, HTTPStatus.BAD_REQUEST
        try:
            question = Question.from_query(dict(parse_qsl(query)))
            return self.server.explorer.answer(question), HTTPStatus.OK
        except ValueError as problem:
            return {"error": str(problem)}, HTTPStatus.BAD_REQUEST

    def _send_json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
        self._send("application/json", text.encode(), status)

    def _send(self, kind: str, data: bytes, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send_error(self, code: int, *_: Any) -> None:
        """Also what the standard library refuses is answered in JSON."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._send_json({"error": status.phrase}, status)

    def log_message(self, *_: Any) -> None:
        """A line for every move of a slider would be no news."""


def serve(server: ExplorerServer, ready: Callable[[str], None]) -> bool:
    """Serve until interrupted; whether nothing is left running.

    Args:
        server: Listens already.
        ready: Called with the address.
    """
    try:
        ready(server.url)
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return server.explorer.close()
