"""What users of grpcio with generated stubs do."""

import importlib

import pytest

from conftest import GrpcClient, load_stubs, prompt_ids

grpc = pytest.importorskip("grpc")
STORY = [("user", "Tell me a story about a fox and a lantern.")]


def details(error):
    """The google.rpc details of an error, by message name."""
    load_stubs()
    status_pb2 = importlib.import_module("google.rpc.status_pb2")
    details_pb2 = importlib.import_module("google.rpc.error_details_pb2")
    found = {}
    for key, value in error.trailing_metadata():
        if key != "grpc-status-details-bin":
            continue
        for any_message in status_pb2.Status.FromString(value).details:
            name = any_message.type_url.rsplit(".", 1)[-1]
            message = getattr(details_pb2, name)()
            assert any_message.Unpack(message)
            found[name] = message
    return found


def test_models(grpc_client):
    pb = grpc_client.messages
    model = grpc_client.stub.GetModel(pb.GetModelRequest()).model
    assert model.name == "switchyard-demo" and model.architecture == "qwen4exp"
    assert model.vocab_size > 0 and model.digest
    listed = grpc_client.stub.ListModels(pb.ListModelsRequest()).models
    assert [m.name for m in listed] == [model.name]
    with pytest.raises(grpc.RpcError) as caught:
        grpc_client.stub.GetModel(pb.GetModelRequest(name="nobody"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_tokens_there_and_back(grpc_client):
    pb = grpc_client.messages
    text = "A fox, a lantern – und ein Käse."
    ids = grpc_client.stub.Tokenize(pb.TokenizeRequest(text=text)).token_ids
    assert grpc_client.stub.Detokenize(pb.DetokenizeRequest(token_ids=ids)).text == text
    pieces = grpc_client.stub.Tokenize(pb.TokenizeRequest(text=text, include_pieces=True)).pieces
    assert b"".join(pieces).decode() == text


def test_stream_is_the_unary_text(grpc_client):
    spec = grpc_client.spec(chat=STORY, max_tokens=32)
    unary = grpc_client.generate(spec)
    events = list(grpc_client.stream(spec))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started" and kinds[-1] == "finished"
    assert set(kinds[1:-1]) == {"delta"}
    assert "".join(e.delta.text for e in events) == unary.text
    assert [i for e in events for i in e.delta.token_ids] == list(unary.token_ids)
    finished = events[-1].finished
    assert finished.usage.completion_tokens == len(unary.token_ids)
    assert finished.reason == unary.finished.reason
    assert finished.timings.ttft_ms > 0


def test_rendered_chat_is_what_generate_runs(grpc_client):
    pb = grpc_client.messages
    spec = grpc_client.spec(chat=STORY, max_tokens=8)
    rendered = grpc_client.stub.RenderChat(pb.RenderChatRequest(chat=spec.chat))
    assert "".join(span.text for span in rendered.spans) == rendered.text
    by_ids = grpc_client.generate(grpc_client.spec(token_ids=rendered.token_ids, max_tokens=8))
    assert by_ids.text == grpc_client.generate(spec).text


def test_progress_trace_and_logprobs(grpc_client):
    spec = grpc_client.spec(token_ids=prompt_ids(1500), max_tokens=4)
    spec.output.include_prompt_progress = True
    spec.output.include_step_trace = True
    spec.output.logprobs_top_n = 2
    events = list(grpc_client.stream(spec))
    progress = [e.prompt_progress for e in events if e.HasField("prompt_progress")]
    assert [p.processed_tokens for p in progress] == sorted(p.processed_tokens for p in progress)
    assert progress[-1].total_tokens == 1500
    deltas = [e.delta for e in events if e.HasField("delta")]
    assert all(d.trace.duration_ns > 0 for d in deltas if d.token_ids)
    positions = [p for d in deltas for p in d.logprobs]
    assert len(positions) == 4 and all(len(p.top) == 2 for p in positions)
    steps = events[-1].finished.timings.steps
    covered = sum(s.duration_ns for s in steps.stages if s.stage != "unattributed")
    assert covered >= 0.9 * steps.duration_ns


def test_cancel_in_the_middle(grpc_client, server):
    spec = grpc_client.spec(token_ids=prompt_ids(20), max_tokens=3000)
    spec.stop.ignore_eos = True
    call = grpc_client.stream(spec)
    for _, event in zip(range(4), call):
        assert event.WhichOneof("event") in ("started", "delta")
    call.cancel()
    with pytest.raises(grpc.RpcError):
        list(call)
    for _ in range(1000):
        if not any(slot["is_processing"] for slot in server.json("/slots")[1]):
            return
    raise AssertionError("the slot is still in use")


def test_deadline(grpc_client):
    spec = grpc_client.spec(token_ids=prompt_ids(20), max_tokens=3000)
    spec.stop.ignore_eos = True
    with pytest.raises(grpc.RpcError) as caught:
        list(grpc_client.stream(spec, timeout=0.2))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_time_limit(grpc_client):
    spec = grpc_client.spec(token_ids=prompt_ids(20), max_tokens=3000)
    spec.stop.ignore_eos = True
    spec.stop.time_limit.FromMilliseconds(200)
    finished = list(grpc_client.stream(spec))[-1].finished
    assert finished.reason == grpc_client.messages.FINISH_REASON_TIME_LIMIT


def edited(client, **changes):
    spec = client.spec(token_ids=prompt_ids(20))
    for path, value in changes.items():
        target = spec
        *parents, last = path.split("__")
        for name in parents:
            target = getattr(target, name)
        field = getattr(target, last)
        if hasattr(field, "extend"):
            field.extend(value)
        elif hasattr(field, "update"):
            field.update(value)
        else:
            setattr(target, last, value)
    return spec


@pytest.mark.parametrize(
    "changes, code, reason",
    [
        ({"sampling__temperature": -1.0}, "INVALID_ARGUMENT", None),
        ({"sampling__temperature": float("nan")}, "INVALID_ARGUMENT", None),
        ({"sampling__top_p": 1.5}, "INVALID_ARGUMENT", None),
        ({"sampling__logit_bias": {4_000_000_000: 1.0}}, "INVALID_ARGUMENT", None),
        ({"sampling__typical_p": 0.5}, "UNIMPLEMENTED", None),
        ({"stop__max_tokens": 0}, "INVALID_ARGUMENT", None),
        ({"stop__max_tokens": 1_000_000}, "INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED"),
        ({"stop__stop": ["x"] * 17}, "INVALID_ARGUMENT", None),
        ({"stop__stop_token_ids": [4_000_000_000]}, "INVALID_ARGUMENT", None),
        ({"output__logprobs_top_n": 21}, "INVALID_ARGUMENT", None),
        ({"labels": {str(i): "x" for i in range(9)}}, "INVALID_ARGUMENT", None),
        ({"request_id": "x" * 129}, "INVALID_ARGUMENT", None),
        ({"model": "nobody"}, "NOT_FOUND", None),
        ({"token_ids__ids": [4_000_000_000]}, "INVALID_ARGUMENT", None),
    ],
)
def test_refusals_have_details(grpc_client, changes, code, reason):
    with pytest.raises(grpc.RpcError) as caught:
        grpc_client.generate(edited(grpc_client, **changes))
    error = caught.value
    assert error.code() == grpc.StatusCode[code]
    assert error.details() and "\n" not in error.details()
    info = details(error)["ErrorInfo"]
    assert info.domain == "switchyard"
    if reason:
        assert info.reason == reason


def test_no_prompt_and_an_empty_one(grpc_client):
    pb = grpc_client.messages
    for spec in (pb.GenerationSpec(), grpc_client.spec(token_ids=[])):
        with pytest.raises(grpc.RpcError) as caught:
            grpc_client.generate(spec)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_running_request_id_is_taken(grpc_client):
    spec = grpc_client.spec(token_ids=prompt_ids(20), max_tokens=3000, request_id="twice")
    spec.stop.ignore_eos = True
    call = grpc_client.stream(spec)
    assert next(call).started.request_id == "twice"
    with pytest.raises(grpc.RpcError) as caught:
        grpc_client.generate(spec)
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    call.cancel()


def test_context_full(grpc_client):
    pb = grpc_client.messages
    context = grpc_client.stub.GetModel(pb.GetModelRequest()).model.context_tokens
    spec = grpc_client.spec(token_ids=prompt_ids(context - 6))
    spec.stop.ClearField("max_tokens")
    spec.stop.ignore_eos = True
    answer = grpc_client.generate(spec)
    assert len(answer.token_ids) == 6
    assert answer.finished.reason == pb.FINISH_REASON_CONTEXT_FULL


def test_a_message_over_the_limit(server):
    client = GrpcClient(server.grpc, options=[("grpc.max_send_message_length", -1)])
    with pytest.raises(grpc.RpcError) as caught:
        client.generate(client.spec(text="x" * (17 << 20)))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert client.generate(client.spec(token_ids=prompt_ids(4), max_tokens=1)).token_ids


def test_keys(start_server, tmp_path):
    import hashlib

    keys = tmp_path / "keys"
    keys.write_text("# ours\n" + hashlib.sha256(b"secret").hexdigest() + "\n")
    server = start_server("--api-key-file", str(keys))
    client = GrpcClient(server.grpc)
    spec = client.spec(token_ids=prompt_ids(4), max_tokens=1)
    for metadata in ((), (("authorization", "Bearer wrong"),)):
        with pytest.raises(grpc.RpcError) as caught:
            client.generate(spec, metadata=metadata)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert client.generate(spec, metadata=(("authorization", "Bearer secret"),)).token_ids


def test_reflection_lists_the_services(server):
    load_stubs()
    pb = importlib.import_module("grpc.reflection.v1alpha.reflection_pb2")
    services = importlib.import_module("grpc.reflection.v1alpha.reflection_pb2_grpc")
    with grpc.insecure_channel(server.grpc) as channel:
        stub = services.ServerReflectionStub(channel)
        answer = next(
            stub.ServerReflectionInfo(iter([pb.ServerReflectionRequest(list_services="")]))
        )
    names = {service.name for service in answer.list_services_response.service}
    assert "switchyard.generation.v1.GenerationService" in names
    assert "grpc.health.v1.Health" in names
