"""What a Kubernetes-style probe and an operator see, from start to drain."""

import importlib
import re
import signal

import pytest

from conftest import GrpcClient, load_stubs, prompt_ids

grpc = pytest.importorskip("grpc")
SERVICE = "switchyard.generation.v1.GenerationService"


def health_stub(address):
    load_stubs()
    pb = importlib.import_module("grpc.health.v1.health_pb2")
    services = importlib.import_module("grpc.health.v1.health_pb2_grpc")
    return pb, services.HealthStub(grpc.insecure_channel(address))


def test_probe(server):
    pb, stub = health_stub(server.grpc)
    for name in ("", SERVICE):
        answer = stub.Check(pb.HealthCheckRequest(service=name), timeout=10)
        assert answer.status == pb.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(pb.HealthCheckRequest(service="nobody"), timeout=10)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    for path in ("/health", "/healthz", "/livez", "/readyz"):
        assert server.request(path)[0] == 200


def test_metrics_say_how_much_is_loaded(server):
    text = server.request("/metrics")[2]
    loaded, total = (
        float(re.search(rf"^switchyard_{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE).group(1))
        for name in ("model_load_bytes", "model_load_total_bytes")
    )
    assert loaded == total > 1e6


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_drain_finishes_what_runs(start_server, signal_number):
    server = start_server("--slots", "2")
    client = GrpcClient(server.grpc)
    spec = client.spec(token_ids=prompt_ids(20), max_tokens=600)
    spec.stop.ignore_eos = True
    alone = client.generate(spec)
    pb, stub = health_stub(server.grpc)
    watch = stub.Watch(pb.HealthCheckRequest(service=SERVICE), timeout=60)
    assert next(watch).status == pb.HealthCheckResponse.SERVING

    call = client.stream(spec)
    assert next(call).HasField("started")
    server.process.send_signal(signal_number)
    assert next(watch).status == pb.HealthCheckResponse.NOT_SERVING
    # The probe fails first; requests are refused from a moment later on.
    while server.request("/health")[0] == 200:
        pass
    # Health comes first; the refusal follows.
    status = 200
    while status == 200:
        status, answer = server.json("/v1/completions", {"prompt": [1, 2], "max_tokens": 1})
    assert status == 503 and answer["error"]["type"] == "unavailable_error"
    with pytest.raises(grpc.RpcError) as caught:
        client.generate(client.spec(token_ids=prompt_ids(2), max_tokens=1))
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE

    text = "".join(event.delta.text for event in call if event.HasField("delta"))
    assert text == alone.text
    assert server.wait() == 0


def test_a_model_that_does_not_load_ends_the_server(tmp_path):
    from conftest import Server

    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(AssertionError) as caught:
        Server(model=str(broken))
    assert "switchyard: " in str(caught.value)
