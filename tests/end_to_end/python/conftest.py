"""Starts real servers for the tests and stops them; tests talk to them through sockets only."""

import contextlib
import importlib
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

BINARY = os.environ["SWITCHYARD_BINARY"]
DEMO_MODEL = os.environ["SWITCHYARD_DEMO_MODEL"]
STUBS = os.environ["SWITCHYARD_STUBS"]
# Sanitizers make everything slower; so may a busy machine.
START_SECONDS = 120

SKIPPED = 77  # what ctest takes for "skipped"


def pytest_sessionfinish(session, exitstatus):
    """Nothing but skipped tests is shown as skipped, never as passed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    ran = sum(len(reporter.stats.get(kind, [])) for kind in ("passed", "failed", "error"))
    if ran == 0 and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = SKIPPED


class Server:
    """A `switchyard serve` process."""

    def __init__(self, *arguments, model=DEMO_MODEL, wait=True):
        self.process = subprocess.Popen(
            [BINARY, "serve", model, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.http = self.grpc = None
        self.log = []
        self._lines = []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self._lines), (self.process.stderr, self.log))
        ]
        for reader in self._readers:
            reader.start()
        self.http = self.wait_for(r"^http: (\S+)$")
        self.grpc = self.wait_for(r"^grpc: (\S+)$")
        if wait:
            self.wait_for(r"^ready: ")

    def _read(self, stream, lines):
        for line in stream:
            with self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            lines.append(None)
            self._changed.notify_all()

    def wait_for(self, pattern, seconds=START_SECONDS, log=False):
        """Waits for a line of the output (or the log) and returns its first group, if any."""
        lines = self.log if log else self._lines

        def find():
            for line in lines:
                match = line is not None and re.search(pattern, line)
                if match:
                    return match
            return None if None not in lines else False

        with self._changed:
            self._changed.wait_for(lambda: find() is not None, timeout=seconds)
            match = find()
            if not match and None in lines:  # it has ended: the other stream says why
                self._changed.wait_for(lambda: None in self._lines and None in self.log, timeout=10)
        assert match, f"no line like {pattern!r}\n" + "\n".join(filter(None, self._lines + self.log))
        return match.group(1) if match.groups() else match.group(0)

    def stop(self, signal_number=signal.SIGTERM, seconds=60):
        """Ends the server as an operator does; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        return self.wait(seconds)

    def wait(self, seconds=60):
        """Waits for the end of a server that was told to stop; returns its exit code."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the server did not stop\n" + "\n".join(filter(None, self.log)))
        finally:
            for reader in self._readers:
                reader.join(timeout=10)
        return self.process.returncode

    def resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024

    def request(self, path, body=None, headers=None, method=None, timeout=60):
        """Returns (status, headers, body as text)."""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(self.http + path, data=data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    def json(self, path, body=None, **more):
        status, _, text = self.request(path, body, **more)
        return status, json.loads(text)


@contextlib.contextmanager
def running(*arguments, **more):
    server = Server(*arguments, **more)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="module")
def server():
    """One server for all tests of a file; it must still answer, and stop cleanly, at the end."""
    with running("--slots", "4", "--prefix-cache-bytes", "256M") as started:
        yield started
        assert started.json("/health")[0] == 200
        assert started.stop() == 0


@pytest.fixture
def start_server():
    """Starts servers with flags of the test's own."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **more: stack.enter_context(running(*arguments, **more))


def load_stubs():
    """The generated modules: (generation_pb2, generation_pb2_grpc, grpc)."""
    grpc = pytest.importorskip("grpc")
    google = pytest.importorskip("google")
    importlib.import_module("google.protobuf")
    import sys

    if STUBS not in sys.path:
        sys.path.insert(0, STUBS)
        # Generated modules live in packages of these names beside the installed ones.
        google.__path__.append(os.path.join(STUBS, "google"))
        grpc.__path__.append(os.path.join(STUBS, "grpc"))
    messages = importlib.import_module("switchyard.generation.v1.generation_pb2")
    services = importlib.import_module("switchyard.generation.v1.generation_pb2_grpc")
    return messages, services, grpc


class GrpcClient:
    """A channel to a server with the generated stub."""

    def __init__(self, address, options=()):
        self.messages, services, self.grpc = load_stubs()
        self.channel = self.grpc.insecure_channel(address, options=options)
        self.stub = services.GenerationServiceStub(self.channel)

    def spec(self, text=None, token_ids=None, chat=None, max_tokens=16, temperature=0, **more):
        pb = self.messages
        spec = pb.GenerationSpec(
            sampling=pb.SamplingParams(temperature=temperature),
            stop=pb.StopCriteria(max_tokens=max_tokens),
            output=pb.OutputOptions(include_token_ids=True),
            **more,
        )
        if text is not None:
            spec.text = text
        if token_ids is not None:
            spec.token_ids.ids.extend(token_ids)
        if chat is not None:
            spec.chat.messages.extend(pb.ChatMessage(role=r, content=c) for r, c in chat)
        return spec

    def generate(self, spec, **more):
        return self.stub.Generate(self.messages.GenerateRequest(spec=spec), timeout=60, **more)

    def stream(self, spec, **more):
        more.setdefault("timeout", 60)
        return self.stub.StreamGenerate(self.messages.StreamGenerateRequest(spec=spec), **more)


@pytest.fixture
def grpc_client(server):
    client = GrpcClient(server.grpc)
    yield client
    client.channel.close()


def prompt_ids(count):
    """A fixed prompt of `count` tokens of the demo model."""
    return [7 + (37 * i) % 900 for i in range(count)]
