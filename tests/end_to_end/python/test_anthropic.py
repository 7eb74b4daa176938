"""What users of the `anthropic` package do."""

import pytest

anthropic = pytest.importorskip("anthropic")

MODEL = "switchyard-demo"
QUESTION = [{"role": "user", "content": "Tell me a story about a fox and a lantern."}]


@pytest.fixture
def client(server):
    return anthropic.Anthropic(base_url=server.http, api_key="none", max_retries=0)


def ask(client, **more):
    more.setdefault("messages", QUESTION)
    more.setdefault("max_tokens", 24)
    # The package no longer knows the field; the API does.
    more.setdefault("extra_body", {"temperature": 0})
    # With a timeout of ours the package does not refuse long answers by itself.
    return client.messages.create(model=MODEL, timeout=60, **more)


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def test_message(client):
    message = ask(client)
    assert message.type == "message" and message.role == "assistant" and message.model == MODEL
    assert text_of(message)
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.input_tokens > 0 and 0 < message.usage.output_tokens <= 24


def test_streamed_message_is_the_unary_one(client):
    unary = ask(client)
    with client.messages.stream(
        model=MODEL, max_tokens=24, extra_body={"temperature": 0}, messages=QUESTION
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert text_of(final) == text_of(unary)
    assert final.stop_reason == unary.stop_reason
    assert final.usage.output_tokens == unary.usage.output_tokens
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"


def test_system_and_blocks(client):
    as_text = ask(client, system="You are brief.")
    as_blocks = ask(
        client,
        system=[{"type": "text", "text": "You are brief."}],
        messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}],
    )
    assert text_of(as_blocks) == text_of(as_text)


def test_stop_sequences(client):
    whole = text_of(ask(client, max_tokens=40))
    stop = whole[10:14]
    message = ask(client, max_tokens=40, stop_sequences=[stop])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    assert text_of(message) == whole[: whole.index(stop)]


def test_count_tokens(client):
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens
    usage = ask(client).usage
    cached = usage.cache_read_input_tokens or 0
    assert counted == usage.input_tokens + cached


@pytest.mark.parametrize(
    "more, error",
    [
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"max_tokens": 10**9}, anthropic.BadRequestError),
        ({"extra_body": {"temperature": -1}}, anthropic.BadRequestError),
        ({"messages": []}, anthropic.BadRequestError),
        ({"messages": [{"role": "owl", "content": "x"}]}, anthropic.BadRequestError),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            anthropic.APIStatusError,
        ),
    ],
)
def test_refusals(client, more, error):
    with pytest.raises(error) as caught:
        ask(client, **more)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["message"]


def test_unknown_model(client):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nobody", max_tokens=4, messages=QUESTION)
