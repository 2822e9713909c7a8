"""A server of the S3 protocol (moto's) that counts requests and can make them fail."""

import io
import logging
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
ERROR = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{0}</Code><Message>{0}</Message></Error>"
# Faults of a server, each with Amazon's status and error code.
REFUSED = {
    "500": ("500 Internal Server Error", "InternalError"),
    "slow down": ("503 Service Unavailable", "SlowDown"),
    "denied": ("403 Forbidden", "AccessDenied"),
    "expired": ("400 Bad Request", "ExpiredToken"),
}
FAULTS = ("500", "slow down", "lost before", "lost after", "late")


class Server:
    """Buckets in memory, at an address of this machine.

    Attributes:
        fault: (method, path) -> the fault to inject into a request, or None.
        requests: number of requests by method.
        sent: bytes of the responses by method.
    """

    def __init__(self) -> None:
        """Start the server."""
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Handler(WSGIRequestHandler):
            """Handler that keeps connections open, as real servers do."""

            protocol_version = "HTTP/1.1"

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.fault: Callable[[str, str], str] = lambda method, path: ""
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._app = DomainDispatcherApplication(create_backend_app)
        # Real servers compare and replace atomically, which the threads of this server do not.
        self._one = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.env = KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.port}"}

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(name, "us-east-1")

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Read all objects of a bucket."""
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        with self._one:
            keys = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].keys
            return {name: key.value for name, key in keys.items()}

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Write an object under any key."""
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        with self._one:
            s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, key, content)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let this process, and its child processes, use the server."""
        with mock.patch.dict(os.environ, self.env):
            yield

    def _answer(self, environ: dict[str, Any], start: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        fault = self.fault(method, path)
        if fault == "late":
            time.sleep(random.uniform(0.1, 0.5))
        if fault == "lost before":
            return self._lose(environ)
        if fault in REFUSED:
            status, code = REFUSED[fault]
            start(status, [("Content-Type", "application/xml")])
            return [ERROR.format(code).encode()]
        with self._one:
            self.requests[method] += 1
            answer = list(self._app(environ | {"wsgi.input": io.BytesIO(body)}, start))
        self.sent[method] += sum(map(len, answer))
        return self._lose(environ) if fault == "lost after" else answer

    def _lose(self, environ: dict[str, Any]) -> Any:
        with suppress(OSError):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError
