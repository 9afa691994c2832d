"""A real HTTP server on loopback that can be made to misbehave."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Server(ThreadingHTTPServer):
    """Serves ``files``; those in ``cut`` end in the middle, after ``half_sent`` is set and ``go_on`` was awaited."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cut: set[str] = set()
        self.num_requests = 0
        self.together = threading.Barrier(1)
        self.half_sent = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.num_requests += 1
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        half = len(content) // 2
        self.wfile.write(content[:half])
        self.wfile.flush()
        server.half_sent.set()
        server.together.wait(timeout=60)
        server.go_on.wait(timeout=60)
        if self.path not in server.cut:
            self.wfile.write(content[half:])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield running
        running.go_on.set()
        running.shutdown()
        thread.join()
