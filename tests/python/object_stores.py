"""Object stores on loopback for the tests: `rclone serve s3`, moto's server, and a proxy that injects faults.

rclone ignores If-None-Match and answers a range with 200. moto answers both as S3 does, and is slow. Every server is
ended by its own process id.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import io
import ipaddress
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from support import need

ACCESS_KEY = "AKIDEXAMPLE0000"
SECRET_KEY = "SECRETEXAMPLE000"
BUCKET = "bucket"
SECONDS = 300.0
PAUSE = 0.05
COMMAND = str(Path(sys.executable).parent / "slackwater")


def run(*words: str, env: dict[str, str], code: int = 0) -> Any:
    """The JSON of a slackwater command, or its stderr if it is to fail."""
    done = subprocess.run([COMMAND, *words, "--json"], env=env, capture_output=True, text=True)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout) if code == 0 else done.stderr


@contextlib.contextmanager
def environment(env: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass
class Store:
    """A server with an empty bucket."""

    endpoint: str
    process: subprocess.Popen[bytes]

    def env(self, home: Path, endpoint: str | None = None) -> dict[str, str]:
        """For a process that uses it, and nothing else that this machine may have set up."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {
            **clean,
            "HOME": str(home),
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
        }

    def client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )


def uploads(store: Store) -> list[Any]:
    """Those that were begun and neither finished nor aborted."""
    client = store.client()
    try:
        return client.list_multipart_uploads(Bucket=BUCKET).get("Uploads") or []
    except client.exceptions.NoSuchUpload:  # rclone's answer as long as none was ever begun
        return []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def started(command: list[str], port: int, log: Path) -> Iterator[Store]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, f"the server ended: {log.read_text()}"
            assert time.monotonic() < limit, f"the server does not answer: {log.read_text()}"
            time.sleep(0.02)  # nothing tells when it listens
        yield Store(f"http://127.0.0.1:{port}", process)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def rclone(directory: Path, port: int | None = None) -> Iterator[Store]:
    (directory / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    program = str(Path(sys.executable).parent / "rclone")
    command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
    with started([*command, "--config", os.devnull, str(directory / "data")], port, directory / "rclone.log") as store:
        yield store


@contextlib.contextmanager
def moto(directory: Path) -> Iterator[Store]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with started(command, port, directory / "moto.log") as store:
        store.client().create_bucket(Bucket=BUCKET)
        yield store


@contextlib.contextmanager
def serve(name: str, directory: Path) -> Iterator[Store]:
    """By name, with what its clients need."""
    need("moto", "boto3")
    with {"rclone": rclone, "moto": moto}[name](directory) as store:
        yield store


@dataclass
class Request:
    method: str
    target: str
    size_bytes: int
    headers: dict[str, str]  # names in lower case

    @property
    def key(self) -> str:
        """Without the bucket; empty for a list."""
        return unquote(urlsplit(self.target).path).removeprefix(f"/{BUCKET}").removeprefix("/")

    @property
    def lists_all(self) -> bool:
        """A list of everything below a prefix, as a restore takes it; others ask for one level."""
        return self.method == "GET" and "list-type=2" in self.target and "delimiter=" not in self.target

    @property
    def is_part(self) -> bool:
        return self.method == "PUT" and "partNumber=" in self.target


@dataclass
class Fault:
    """What the proxy does instead of passing a request on."""

    status: int = 0  # answers with this status, and the error code below
    code: str = ""
    page: str = ""  # the body of that answer, instead of one with an error code
    reset_after: int | None = None  # reads so many bytes of the body, then breaks the connection
    etag: str = ""  # passes the request on, and replaces the tag in the answer
    wait: threading.Event | None = None  # holds the request until this is set
    trickle: int = 0  # passes the bodies on slowly: so many portions, with a pause after each


@dataclass
class Proxy:
    """Passes requests on to a store, but first asks `fault` what to do with each. Records what it saw."""

    store: Store
    fault: Callable[[Request], Fault | None] = lambda request: None
    seen: list[Request] = field(default_factory=list)
    endpoint: str = ""
    certificate: Path | None = None  # speaks TLS with this one, which also holds the key

    def __enter__(self) -> Proxy:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, size, headers)
                proxy.seen.append(request)
                fault = proxy.fault(request) or Fault()
                if fault.wait is not None:
                    fault.wait.wait(SECONDS)
                if fault.reset_after is not None:
                    self.rfile.read(min(size, fault.reset_after))
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                body = b"".join(self.portions(self.rfile.read, size, fault.trickle))
                if len(body) < size:  # the client was killed; a store would wait for the rest
                    self.close_connection = True
                    return
                if fault.status:
                    said = f"<Error><Code>{fault.code}</Code><Message>injected</Message></Error>"
                    text = (fault.page or said).encode()
                    self.answer(fault.status, {"Content-Length": str(len(text))}, text)
                    return
                upstream = http.client.HTTPConnection(proxy.store.endpoint.removeprefix("http://"), timeout=SECONDS)
                with contextlib.closing(upstream):
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        upstream.putheader(name, value)
                    upstream.endheaders(body)
                    answer = upstream.getresponse()
                    content = answer.read()
                    headers = {
                        k: v for k, v in answer.getheaders() if k.lower() not in ("transfer-encoding", "connection")
                    }
                if self.command != "HEAD":
                    headers["Content-Length"] = str(len(content))
                if fault.etag:
                    headers = {**{k: v for k, v in headers.items() if k.lower() != "etag"}, "ETag": fault.etag}
                self.answer(answer.status, headers, content, fault.trickle)

            def portions(self, read: Callable[[int], bytes], size: int, trickle: int) -> Iterator[bytes]:
                if not trickle:
                    yield read(size)
                    return
                step = size // trickle + 1
                for start in range(0, size, step):
                    yield read(min(step, size - start))
                    time.sleep(PAUSE)  # this is the fault: a slow network

            def answer(self, status: int, headers: dict[str, str], content: bytes, trickle: int = 0) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    for portion in self.portions(io.BytesIO(content).read, len(content), trickle):
                        self.wfile.write(portion)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:  # the client was killed, or the connection reset
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if self.certificate is None else "https"
        self.endpoint = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def first(count: int, matches: Callable[[Request], bool], fault: Fault) -> Callable[[Request], Fault | None]:
    """A fault for the first `count` requests that match."""
    left = [count]

    def choose(request: Request) -> Fault | None:
        if left[0] == 0 or not matches(request):
            return None
        left[0] -= 1
        return fault

    return choose


def self_signed(directory: Path) -> Path:
    """A certificate of 127.0.0.1 with its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    file = directory / "certificate.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
    return file
