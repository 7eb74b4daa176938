"""A server with a worker process: the same text as without, also when the worker is lost."""

import os
import re
import signal
import threading
import time

import pytest

from conftest import GrpcClient, prompt_ids

grpc = pytest.importorskip("grpc")

IS_SANITIZED = bool(os.environ.get("SWITCHYARD_SANITIZE"))


def spec(client, number, max_tokens=200, temperature=1):
    result = client.spec(
        token_ids=prompt_ids(60 + number), max_tokens=max_tokens, temperature=temperature
    )
    result.sampling.seed = number
    result.sampling.repetition_penalty = 1.1
    result.stop.ignore_eos = True
    return result


@pytest.fixture(scope="module")
def solo_texts(server):
    client = GrpcClient(server.grpc)
    return [client.generate(spec(client, n)).text for n in range(4)]


def worker_pid(server):
    """The process id of the worker that the supervisor runs now."""
    children = open(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read()
    pids = []
    for task in os.listdir(f"/proc/{server.process.pid}/task"):
        try:
            pids += open(f"/proc/{server.process.pid}/task/{task}/children").read().split()
        except FileNotFoundError:
            pass
    assert children is not None and len(pids) == 1, pids
    return int(pids[0])


class Streams:
    """Four streams that run in the background."""

    def __init__(self, client):
        self.results = [None] * 4
        self.moved = threading.Semaphore(0)
        self.threads = [
            threading.Thread(target=self._run, args=(client, n), daemon=True) for n in range(4)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, client, number):
        text, last = "", None
        try:
            for event in client.stream(spec(client, number), timeout=120):
                text += event.delta.text
                last = event
                self.moved.release()
            self.results[number] = (text, last.finished)
        except grpc.RpcError as error:
            self.results[number] = (text, error)

    def wait_for_events(self, count):
        for _ in range(count):
            assert self.moved.acquire(timeout=60)

    def join(self):
        for thread in self.threads:
            thread.join(timeout=120)
        assert None not in self.results
        return self.results


def test_worker_process_gives_the_same_text(start_server, solo_texts):
    server = start_server("--workers", "1", "--slots", "4")
    client = GrpcClient(server.grpc)
    assert [client.generate(spec(client, n)).text for n in range(4)] == solo_texts
    assert server.stop() == 0


def test_worker_from_outside_gives_the_same_text(start_server, solo_texts, tmp_path):
    import subprocess

    from conftest import BINARY

    server = start_server("--expect-workers", "1", "--slots", "4", wait=False)
    assert server.request("/readyz")[0] == 503
    address = server.wait_for(r"^workers: (\S+)$")
    worker = subprocess.Popen([BINARY, "-q", "worker", "--coordinator", address])
    try:
        server.wait_for(r"^ready: ")
        client = GrpcClient(server.grpc)
        assert [client.generate(spec(client, n)).text for n in range(4)] == solo_texts
        assert server.stop() == 0
        assert worker.wait(timeout=90) == 0
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize("moment", [4, 40, 200])
def test_killed_worker_is_replaced_and_no_token_is_lost(start_server, solo_texts, moment):
    server = start_server("--workers", "1", "--slots", "4")
    client = GrpcClient(server.grpc)
    pid = worker_pid(server)
    streams = Streams(client)
    streams.wait_for_events(moment)
    os.kill(pid, signal.SIGKILL)
    results = streams.join()
    assert [text for text, _ in results] == solo_texts
    assert any(finished.replayed for _, finished in results)
    assert worker_pid(server) != pid
    assert server.stop() == 0


def test_serving_again_within_three_seconds(start_server):
    server = start_server("--workers", "1", "--slots", "4")
    client = GrpcClient(server.grpc)
    short = client.spec(token_ids=prompt_ids(8), max_tokens=1)
    client.generate(short)
    os.kill(worker_pid(server), signal.SIGKILL)
    start = time.monotonic()
    client.generate(short)
    if not IS_SANITIZED:
        assert time.monotonic() - start < 3


def test_on_worker_loss_fail_ends_the_stream(start_server):
    server = start_server("--workers", "1", "--on-worker-loss", "fail")
    client = GrpcClient(server.grpc)
    streams = Streams(client)
    streams.wait_for_events(8)
    os.kill(worker_pid(server), signal.SIGKILL)
    errors = [error for _, error in streams.join() if isinstance(error, grpc.RpcError)]
    assert errors
    for error in errors:
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        names = [key for key, _ in error.trailing_metadata()]
        assert "grpc-status-details-bin" in names
    assert client.generate(spec(client, 0)).text


def test_a_pause_of_a_second_is_no_loss(start_server, solo_texts):
    server = start_server("--workers", "1", "--slots", "4")
    client = GrpcClient(server.grpc)
    pid = worker_pid(server)
    streams = Streams(client)
    streams.wait_for_events(8)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(pid, signal.SIGCONT)
    results = streams.join()
    assert [text for text, _ in results] == solo_texts
    assert not any(finished.replayed for _, finished in results)
    assert worker_pid(server) == pid


def test_a_stopped_worker_is_replaced(start_server, solo_texts):
    server = start_server("--workers", "1", "--slots", "4")
    client = GrpcClient(server.grpc)
    pid = worker_pid(server)
    streams = Streams(client)
    streams.wait_for_events(8)
    os.kill(pid, signal.SIGSTOP)
    results = streams.join()
    assert [text for text, _ in results] == solo_texts
    assert any(finished.replayed for _, finished in results)
    assert worker_pid(server) != pid
    text = server.request("/metrics")[2]
    assert re.search(r"^switchyard_worker_restarts_total\S* 1$", text, re.MULTILINE), text


def test_worker_that_leaves_finishes_what_runs(start_server, solo_texts):
    """What runs is neither lost nor replayed; what comes meanwhile waits for the next worker."""
    server = start_server("--workers", "1", "--slots", "4")
    client = GrpcClient(server.grpc)
    running_call = client.stream(spec(client, 0, max_tokens=3000), timeout=120)
    events = [next(running_call) for _ in range(20)]
    first = worker_pid(server)
    os.kill(first, signal.SIGTERM)
    while server.request("/health")[0] != 503:  # nobody should send more at present
        assert len(events) < 2900, "the worker left without a word"
        events.append(next(running_call))
    waiting = client.stream(spec(client, 1), timeout=120)
    events += running_call
    finished = events[-1].finished
    assert sum(len(event.delta.token_ids) for event in events) == 3000
    assert finished.usage.completion_tokens == 3000 and not finished.replayed
    answer = list(waiting)
    assert "".join(event.delta.text for event in answer) == solo_texts[1]
    assert not answer[-1].finished.replayed
    assert worker_pid(server) != first
    assert server.stop() == 0
