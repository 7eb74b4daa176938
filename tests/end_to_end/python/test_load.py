"""Many clients at once, clients that leave, and clients that do not read."""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import time

import pytest

import load_client
from conftest import GrpcClient, prompt_ids, running

grpc = pytest.importorskip("grpc")

# Sanitizers and busy machines make a flood slow; its size is what the plain build is held to.
IS_SANITIZED = bool(os.environ.get("SWITCHYARD_SANITIZE"))
NUM_TOKENS = 32 if IS_SANITIZED else 128
NUM_PROMPTS = 8


# Its answer has about 9 MB, more than the kernel's buffers take.
LONG_CHAT = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 3500,
    "ignore_eos": True,
    "stream": True,
    "logprobs": True,
    "top_logprobs": 20,
}


def prompt(number):
    return [7 + (37 * i + 11 * number) % 900 for i in range(20 + number)]


def body(number, **more):
    return {
        "prompt": prompt(number),
        "max_tokens": NUM_TOKENS,
        "temperature": 1,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
        **more,
    }


def spec(client, number, max_tokens=NUM_TOKENS):
    result = client.spec(token_ids=prompt(number), max_tokens=max_tokens, temperature=1)
    result.sampling.seed = number
    result.stop.ignore_eos = True
    return result


def metric(server, name):
    """The sum of a metric over its labels; labels come with the first count."""
    text = server.request("/metrics")[2]
    values = re.findall(rf"^switchyard_{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, values))


def assert_idle(server, seconds=5):
    """Nothing of any request is left: no slot, no queue entry, no page of a running sequence."""
    deadline = time.monotonic() + seconds
    while True:
        busy = [slot for slot in server.json("/slots")[1] if slot["is_processing"]]
        waiting = metric(server, "num_requests_waiting")
        running = metric(server, "num_requests_running")
        if not busy and not waiting and not running:
            return
        assert time.monotonic() < deadline, (busy, waiting, running)


@pytest.fixture(scope="module")
def server():
    with running("--slots", "16", "--queue", "512") as started:
        yield started
        assert started.stop() == 0


@pytest.fixture(scope="module")
def solo_texts(server):
    client = GrpcClient(server.grpc)
    return [client.generate(spec(client, n)).text for n in range(NUM_PROMPTS)]


@pytest.mark.parametrize("count", [64, 256])
def test_http_streams_equal_their_solo_text(server, solo_texts, count):
    async def flood():
        return await asyncio.gather(
            *(load_client.complete(server.http, body(n % NUM_PROMPTS)) for n in range(count))
        )

    def check(results):
        for n, (status, text, _) in enumerate(results):
            assert status == 200
            assert text == solo_texts[n % NUM_PROMPTS]

    check(asyncio.run(flood()))
    assert_idle(server)
    before = server.resident_bytes()
    check(asyncio.run(flood()))
    assert_idle(server)
    # Memory is flat: a second flood of the same kind keeps nothing (arenas of the allocator move
    # by some megabytes).
    assert server.resident_bytes() - before < 16 << 20 or IS_SANITIZED


@pytest.mark.parametrize("count", [64, 256])
def test_grpc_streams_equal_their_solo_text(server, solo_texts, count):
    client = GrpcClient(server.grpc)

    async def stream(stub, number):
        message = client.messages.StreamGenerateRequest(spec=spec(client, number))
        text, kinds = "", []
        async for event in stub.StreamGenerate(message, timeout=300):
            kinds.append(event.WhichOneof("event"))
            text += event.delta.text
        assert kinds[0] == "started" and kinds[-1] == "finished"
        assert kinds.count("started") == kinds.count("finished") == 1
        return text

    async def flood():
        from conftest import load_stubs

        _, services, _ = load_stubs()
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            stub = services.GenerationServiceStub(channel)
            return await asyncio.gather(*(stream(stub, n % NUM_PROMPTS) for n in range(count)))

    for n, text in enumerate(asyncio.run(flood())):
        assert text == solo_texts[n % NUM_PROMPTS]
    assert_idle(server)


def test_clients_that_leave_leave_nothing_behind(server, solo_texts):
    """1,000 clients drop at random points: queued, in prefill, between tokens, before reading."""
    count = 100 if IS_SANITIZED else 1000
    rng = random.Random(5)

    async def leave(number, gate):
        async with gate:
            request = body(number % NUM_PROMPTS, max_tokens=400)
            if number % 4 == 0:
                request["prompt"] = prompt_ids(1000 + number % 7)
            reader, writer = await load_client.open_stream(server.http, "/v1/completions", request)
            moment = rng.randrange(4)
            if moment == 1:
                await asyncio.sleep(rng.random() / 20)
            elif moment >= 2:
                status, headers = await load_client.read_head(reader)
                assert status == 200
                if moment == 3:
                    left = rng.randrange(1, 12)
                    async for _ in load_client.events(reader, headers):
                        left -= 1
                        if left == 0:
                            break
            if rng.random() < 0.5:
                load_client.reset(writer)
            else:
                writer.close()

    async def flood():
        gate = asyncio.Semaphore(64)
        await asyncio.gather(*(leave(n, gate) for n in range(count)))

    asyncio.run(flood())
    # One step and 100 ms; what a poll over HTTP adds is the test's own.
    assert_idle(server, seconds=1.0 if not IS_SANITIZED else 10)
    client = GrpcClient(server.grpc)
    assert client.generate(spec(client, 3)).text == solo_texts[3]


def test_queue_overflow_is_refused_and_harms_nobody(start_server, solo_texts):
    server = start_server("--slots", "2", "--queue", "4")

    async def flood():
        tasks = [load_client.complete(server.http, body(n % NUM_PROMPTS)) for n in range(40)]
        return await asyncio.gather(*tasks)

    results = asyncio.run(flood())
    served = [n for n, (status, _, _) in enumerate(results) if status == 200]
    # At least what the queue holds; more as slots take some out of it meanwhile.
    assert 4 <= len(served) < 40
    for n in served:
        assert results[n][1] == solo_texts[n % NUM_PROMPTS]
    for status, _, last in results:
        if status == 200:
            continue
        headers, answer = last
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert answer["error"]["type"] == "rate_limit_error"
    client = GrpcClient(server.grpc)
    calls = [client.stream(spec(client, n % NUM_PROMPTS)) for n in range(12)]
    codes = set()
    for call in calls:
        try:
            list(call)
        except grpc.RpcError as error:
            codes.add(error.code())
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert_idle(server)
    assert server.stop() == 0


def test_a_reader_that_never_reads_is_given_up(start_server, solo_texts):
    """Others go on; the slow one is merged, then cancelled at its limit; memory stays bounded."""
    server = start_server("--slots", "4", "--stream-buffer-bytes", "16K")
    client = GrpcClient(server.grpc)

    async def scenario():
        slow = await load_client.open_stream(
            server.http, "/v1/chat/completions", LONG_CHAT, receive_buffer=4096
        )
        loop = asyncio.get_running_loop()
        for n in range(NUM_PROMPTS):
            text = await loop.run_in_executor(None, lambda: client.generate(spec(client, n)).text)
            assert text == solo_texts[n]
        # The client is still there and has still read nothing.
        deadline = time.monotonic() + 60
        while not metric(server, "request_errors_total"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        load_client.reset(slow[1])

    before = server.resident_bytes()
    asyncio.run(scenario())
    assert_idle(server)
    assert server.resident_bytes() - before < 64 << 20 or IS_SANITIZED
    assert server.stop() == 0


def test_slow_readers_hold_nobody_up(start_server, solo_texts):
    """One reader a protocol reads an event for each answer of others, one never reads.

    The others' answers are counted, not timed: while the slow ones are stalled, all others are
    there, whole and unchanged.
    """
    server = start_server("--slots", "8", "--stream-buffer-bytes", "16K")
    fast = GrpcClient(server.grpc)
    slow = GrpcClient(server.grpc, options=load_client.SMALL_GRPC_WINDOWS)

    def slow_call():
        request = spec(slow, 0, max_tokens=3500)
        request.output.logprobs_top_n = 20
        return slow.stream(request, timeout=300)

    async def scenario():
        streams = [
            await load_client.open_stream(
                server.http, "/v1/chat/completions", LONG_CHAT, receive_buffer=4096
            )
            for _ in range(2)
        ]
        calls = [slow_call(), slow_call()]
        while metric(server, "num_requests_running") < 4:
            await asyncio.sleep(0)
        reader = streams[0][0]
        _, headers = await load_client.read_head(reader)
        http_events = load_client.events(reader, headers)
        loop = asyncio.get_running_loop()
        given_up = (OSError, asyncio.IncompleteReadError, AssertionError, grpc.RpcError)
        for n in range(4 * NUM_PROMPTS):
            number = n % NUM_PROMPTS
            text = await loop.run_in_executor(
                None, lambda: fast.generate(spec(fast, number)).text
            )
            assert text == solo_texts[number]
            with contextlib.suppress(*given_up):
                await anext(http_events, None)
            with contextlib.suppress(*given_up):
                next(calls[0], None)
        # All four fall behind by far more than their buffers take, and each is given up.
        deadline = time.monotonic() + 60
        while metric(server, "request_errors_total") < 4:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        for call in calls:
            with contextlib.suppress(grpc.RpcError):
                list(call)
            assert call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        for _, writer in streams:
            load_client.reset(writer)

    before = server.resident_bytes()
    asyncio.run(scenario())
    assert_idle(server)
    assert server.resident_bytes() - before < 64 << 20 or IS_SANITIZED
    assert server.stop() == 0


def test_sigterm_under_load_finishes_what_runs(start_server, solo_texts):
    server = start_server("--slots", "4")

    async def flood():
        tasks = [
            asyncio.create_task(load_client.complete(server.http, body(n % NUM_PROMPTS)))
            for n in range(24)
        ]
        while metric(server, "num_requests_running") < 4:
            await asyncio.sleep(0)
        server.process.send_signal(signal.SIGTERM)
        return await asyncio.gather(*tasks, return_exceptions=True)

    finished = 0
    for n, result in enumerate(asyncio.run(flood())):
        if isinstance(result, BaseException):
            # Not accepted any more: the connection was refused or closed before an answer.
            assert isinstance(result, (OSError, asyncio.IncompleteReadError)), result
            continue
        status, text, last = result
        if status == 200:
            assert text == solo_texts[n % NUM_PROMPTS]
            finished += 1
        else:
            assert status == 503 and last[1]["error"]["type"] == "unavailable_error"
    assert finished >= 4
    assert server.process.wait(timeout=60) == 0
