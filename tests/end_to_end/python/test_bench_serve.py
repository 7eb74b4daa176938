"""`switchyard bench-serve` against a running server, over both protocols."""

import json
import signal
import subprocess

import pytest

from conftest import BINARY, Server

PROMPT, SHARED, ANSWER, REQUESTS = 200, 128, 12, 5


def bench(*arguments, code=0):
    result = subprocess.run(
        [BINARY, "bench-serve", *arguments], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


def report(server, protocol, *arguments):
    target = ("--http", server.http) if protocol == "http" else ("--grpc", server.grpc)
    sizes = ("-p", str(PROMPT), "-n", str(ANSWER), "-r", str(REQUESTS))
    return json.loads(bench(*target, *sizes, *arguments, "-o", "json").stdout)


def check_samples(found, cached):
    assert found["num_ok"] == REQUESTS and found["num_failed"] == 0
    assert len(found["samples"]) == REQUESTS
    for sample in found["samples"]:
        assert sample["error"] == ""
        assert sample["prompt_tokens"] == PROMPT
        assert sample["cached_tokens"] == cached
        assert sample["completion_tokens"] == ANSWER
        assert len(sample["gap_seconds"]) == ANSWER - 1
        assert 0 < sample["ttft_seconds"] < sample["e2e_seconds"]
        assert sample["tpot_seconds"] > 0
        assert sample["prompt_per_second"] > 0


def check_group(found, name):
    (group,) = found["groups"]
    assert group["name"] == name and group["num_requests"] == REQUESTS
    for series in ("TTFT", "TPOT", "E2E", "prefill", "decode"):
        assert group[series]["n"] == REQUESTS
        assert group[series]["p50"] > 0, series
    assert group["ITL"]["n"] == REQUESTS * (ANSWER - 1)
    assert group["ITL"]["p99"] > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_cold_prompts_stay_cold_from_run_to_run(server, protocol):
    for _ in range(2):
        found = report(server, protocol)
        check_samples(found, cached=0)
        check_group(found, "cold")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_shared_prefix_is_hit_by_every_request(server, protocol):
    found = report(server, protocol, "--shared-prefix", str(SHARED), "-c", "2")
    check_samples(found, cached=SHARED)
    check_group(found, "prefix hit")


def test_both_protocols_name_the_same_server(server):
    _, models = server.json("/v1/models")
    (model,) = models["data"]
    assert model["meta"]["n_ctx"] == model["meta"]["context_tokens"]
    # Random prompts are made of ids below this number.
    num_ids = model["meta"]["n_vocab"]
    for token_id, status in ((num_ids - 1, 200), (num_ids, 400)):
        body = {"prompt": [token_id], "max_tokens": 1}
        assert server.request("/v1/completions", body)[0] == status
    for protocol in ("http", "grpc"):
        found = report(server, protocol)
        assert found["model"] == model["id"]
        for name in ("digest", "mode", "plan_id", "context_tokens"):
            assert found[name] == model["meta"][name] and found[name]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_text_report_has_every_line(server, protocol):
    target = server.http if protocol == "http" else server.grpc
    text = bench(f"--{protocol}", target, "-r", "2", "-n", "4").stdout
    for word in ("TTFT", "ITL", "TPOT", "E2E", "prefill", "decode", "2 ok, 0 failed"):
        assert word in text


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_refused_requests_fail_the_run(server, protocol):
    target = server.http if protocol == "http" else server.grpc
    result = bench(f"--{protocol}", target, "-r", "1", "-p", "5000", code=1)
    assert "0 ok, 1 failed" in result.stdout
    assert "context" in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_ctrl_c_ends_an_open_loop_at_once(server, protocol):
    target = server.http if protocol == "http" else server.grpc
    # The second request would start in weeks.
    process = subprocess.Popen(
        [BINARY, "bench-serve", f"--{protocol}", target, "--rate", "1e-6"]
        + ["--warmup", "0", "-r", "2", "-p", "20", "-n", "3000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        while not any(slot["is_processing"] for slot in server.json("/slots")[1]):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "0 ok, 0 failed" in stdout  # what it has cut off is no failure
    finally:
        process.kill()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_nobody_at_the_address_is_one_line(protocol):
    gone = Server()
    target = gone.http if protocol == "http" else gone.grpc
    assert gone.stop() == 0
    result = bench(f"--{protocol}", target, code=1)
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1


def test_wrong_flags_are_usage_errors():
    for arguments in ((), ("--http", "127.0.0.1:1"), ("--http", "http://a:1", "--grpc", "a:1")):
        bench(*arguments, code=2)
