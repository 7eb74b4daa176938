"""Measures a server under load and prints rows of docs/benchmarks' tables; no test.

    SWITCHYARD_BINARY=build/cpu/src/app/switchyard \
    SWITCHYARD_DEMO_MODEL=deploy/demo/switchyard-demo.gguf \
    SWITCHYARD_STUBS=build/cpu/tests/end_to_end/python/stubs \
    build/venv/bin/python tests/end_to_end/python/measure_load.py [streams] [leavers] [slow]
"""

import asyncio
import json
import random
import statistics
import subprocess
import sys
import threading
import time

import load_client
from conftest import BINARY, GrpcClient, prompt_ids, running

MEGABYTE = 1 << 20


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def load():
    with open("/proc/loadavg") as file:
        return file.read().split()[0]


# ---- many streams at once -----------------------------------------------------------------------


def measure_streams():
    row("streams", "over", "TTFT p50, ms", "p99", "TPOT p50, ms", "p99", "tok/s", "resident, MB")
    row(*["---"] * 8)
    with running("--slots", "256", "--queue", "512") as server:
        for count in (64, 256):
            for protocol in ("http", "grpc"):
                target = server.http if protocol == "http" else server.grpc
                before = server.resident_bytes()
                command = [BINARY, "bench-serve", f"--{protocol}", target, "-o", "json"]
                command += ["-c", str(count), "-r", str(count), "--warmup", str(count // 8)]
                command += ["-p", "32", "-n", "128"]
                result = subprocess.run(command, capture_output=True, text=True, check=True)
                report = json.loads(result.stdout)
                assert report["num_failed"] == 0 and report["num_ok"] == count
                (group,) = report["groups"]
                milliseconds = [
                    f"{sorted(values)[max(0, -(-len(values) * percent // 100) - 1)] * 1000:.1f}"
                    for values in (
                        [sample["ttft_seconds"] for sample in report["samples"]],
                        [sample["tpot_seconds"] for sample in report["samples"]],
                    )
                    for percent in (50, 99)
                ]
                after = server.resident_bytes()
                memory = f"{before / MEGABYTE:.0f} to {after / MEGABYTE:.0f}"
                speed = f"{report['output_tokens_per_second']:.0f}"
                row(count, protocol, *milliseconds, speed, memory)


# ---- clients that leave -------------------------------------------------------------------------


async def leave(server, rng, number):
    request = {"prompt": prompt_ids(1000 + number % 7 if number % 4 == 0 else 20 + number % 8)}
    request |= {"max_tokens": 400, "temperature": 1, "ignore_eos": True, "stream": True}
    reader, writer = await load_client.open_stream(server.http, "/v1/completions", request)
    moment = rng.randrange(4)
    if moment == 1:
        await asyncio.sleep(rng.random() / 20)
    elif moment >= 2:
        _, headers = await load_client.read_head(reader)
        left = rng.randrange(1, 12)
        if moment == 3:
            async for _ in load_client.events(reader, headers):
                left -= 1
                if left == 0:
                    break
    if rng.random() < 0.5:
        load_client.reset(writer)
    else:
        writer.close()


def is_busy(server):
    return any(slot["is_processing"] for slot in server.json("/slots")[1])


def measure_leavers():
    row("round", "clients", "until idle, ms", "of that the last answer of /slots, ms")
    row(*["---"] * 4)
    with running("--slots", "16", "--queue", "512") as server:
        for number in range(5):
            rng = random.Random(number)

            async def flood():
                gate = asyncio.Semaphore(64)

                async def one(client):
                    async with gate:
                        await leave(server, rng, client)

                await asyncio.gather(*(one(client) for client in range(1000)))

            asyncio.run(flood())
            start = time.monotonic()
            while True:
                asked = time.monotonic()
                if not is_busy(server):
                    break
            end = time.monotonic()
            row(number + 1, 1000, f"{(end - start) * 1000:.1f}", f"{(end - asked) * 1000:.1f}")
        errors = server.request("/metrics")[2].count("request_errors_total{")
        assert errors == 0, "some request failed"


# ---- slow readers -------------------------------------------------------------------------------

COMPANION_TOKENS = 3500


class Companions:
    """Two requests of one protocol that run beside what is measured, and are read in some way."""

    def __init__(self, server, protocol, reading):
        self.stopped = threading.Event()
        self.threads = []
        self.ends = []
        for _ in range(2):
            read_one = self.open_http(server) if protocol == "http" else self.open_grpc(server)
            if reading == "never":
                continue
            interval = 1.0 if reading == "1 event/s" else 0.0
            thread = threading.Thread(target=self.read, args=(read_one, interval), daemon=True)
            thread.start()
            self.threads.append(thread)

    def read(self, read_one, interval):
        while not self.stopped.wait(interval) and read_one():
            pass

    def open_http(self, server):
        request = {"prompt": prompt_ids(30), "max_tokens": COMPANION_TOKENS, "ignore_eos": True}
        request |= {"stream": True, "temperature": 0, "logprobs": 5}
        loop = asyncio.new_event_loop()
        opened = load_client.open_stream(
            server.http, "/v1/completions", request, receive_buffer=16384
        )
        reader, writer = loop.run_until_complete(opened)
        self.ends.append(lambda: load_client.reset(writer))

        def read_one():
            try:
                return len(loop.run_until_complete(reader.readline())) > 0
            except OSError:
                return False

        return read_one

    def open_grpc(self, server):
        client = GrpcClient(server.grpc, options=load_client.SMALL_GRPC_WINDOWS)
        request = client.spec(token_ids=prompt_ids(30), max_tokens=COMPANION_TOKENS)
        request.stop.ignore_eos = True
        request.output.logprobs_top_n = 5
        call = client.stream(request, timeout=300)
        self.ends.append(call.cancel)

        def read_one():
            try:
                return next(call, None) is not None
            except client.grpc.RpcError:
                return False

        return read_one

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join()
        for end in self.ends:
            end()


def speed_beside(server, client, protocol, reading):
    """Tokens a second of one gRPC stream while companions run."""
    companions = Companions(server, protocol, reading)
    while sum(slot["is_processing"] for slot in server.json("/slots")[1]) < 2:
        pass
    request = client.spec(token_ids=prompt_ids(30), max_tokens=256)
    request.stop.ignore_eos = True
    times = [time.monotonic() for event in client.stream(request) if event.WhichOneof("event") == "delta"]
    still_run = sum(slot["is_processing"] for slot in server.json("/slots")[1])
    companions.stop()
    while is_busy(server):
        pass
    assert still_run == 2, "the companions did not run all the time"
    return 255 / (times[-1] - times[0])


def measure_slow_readers():
    rounds = 5
    row("companions over", "read", "tok/s of another stream", "ratio to companions that keep up", "all ratios")
    row(*["---"] * 5)
    # So much may wait that the slow ones are not given up within a measurement.
    with running("--slots", "8", "--stream-buffer-bytes", "256M") as server:
        client = GrpcClient(server.grpc)
        for protocol in ("http", "grpc"):
            speeds = {"keeping up": [], "1 event/s": [], "never": []}
            speed_beside(server, client, protocol, "keeping up")
            for number in range(rounds):
                order = list(speeds) if number % 2 == 0 else list(speeds)[::-1]
                for reading in order:
                    speeds[reading].append(speed_beside(server, client, protocol, reading))
            for reading, values in speeds.items():
                ratios = [a / b for a, b in zip(values, speeds["keeping up"])]
                row(
                    protocol,
                    reading,
                    f"{statistics.median(values):.0f}",
                    f"{statistics.median(ratios):.2f}",
                    f"{min(ratios):.2f} to {max(ratios):.2f}",
                )


def main():
    parts = {"streams": measure_streams, "leavers": measure_leavers, "slow": measure_slow_readers}
    for name in sys.argv[1:] or parts:
        print(f"\n{name}, load {load()}", flush=True)
        parts[name]()


main()
