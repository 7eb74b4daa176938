"""What users of the `openai` package do."""

import concurrent.futures

import pytest

openai = pytest.importorskip("openai")

MODEL = "switchyard-demo"
QUESTION = [{"role": "user", "content": "Tell me a story about a fox and a lantern."}]


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0)


def chat(client, **more):
    more.setdefault("messages", QUESTION)
    more.setdefault("max_tokens", 24)
    more.setdefault("temperature", 0)
    return client.chat.completions.create(model=MODEL, **more)


def complete(client, **more):
    more.setdefault("max_tokens", 24)
    more.setdefault("temperature", 0)
    return client.completions.create(model=MODEL, **more)


def joined(stream):
    return "".join(c.choices[0].delta.content or "" for c in stream if c.choices)


def test_models(client):
    models = client.models.list().data
    assert [m.id for m in models] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_chat(client):
    answer = chat(client, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert answer.object == "chat.completion"
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 24
    timings = answer.model_extra["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == usage.prompt_tokens
    assert timings["cache_n"] == usage.prompt_tokens_details.cached_tokens
    assert timings["predicted_n"] == usage.completion_tokens


def test_streamed_chat_is_the_unary_text(client):
    body = {"chat_template_kwargs": {"enable_thinking": False}}
    unary = chat(client, extra_body=body)
    chunks = list(
        chat(client, stream=True, stream_options={"include_usage": True}, extra_body=body)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert joined(chunks) == unary.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert reasons[-1] == unary.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == unary.usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


def test_reasoning_is_apart_from_content(client):
    body = {"chat_template_kwargs": {"enable_thinking": True}}
    answer = chat(client, max_tokens=400, extra_body=body)
    message = answer.choices[0].message
    reasoning = message.model_extra.get("reasoning_content")
    assert "<think>" not in (message.content or "") and "</think>" not in (message.content or "")
    assert reasoning and "think>" not in reasoning
    streamed = {"content": "", "reasoning_content": ""}
    for chunk in chat(client, max_tokens=400, stream=True, extra_body=body):
        delta = chunk.choices[0].delta
        streamed["content"] += delta.content or ""
        streamed["reasoning_content"] += (delta.model_extra or {}).get("reasoning_content") or ""
    assert streamed == {"content": message.content or "", "reasoning_content": reasoning}


def test_completion(client):
    answer = complete(client, prompt="Once upon a time", stop=["."])
    assert answer.object == "text_completion"
    assert "." not in answer.choices[0].text
    tokens = [7 + (37 * i) % 900 for i in range(20)]
    by_ids = complete(client, prompt=tokens)
    assert by_ids.usage.prompt_tokens == 20
    streamed = "".join(
        c.choices[0].text for c in complete(client, prompt=tokens, stream=True) if c.choices
    )
    assert streamed == by_ids.choices[0].text
    # OpenAI's own limit where none is given.
    assert complete(client, prompt=tokens, max_tokens=None).usage.completion_tokens <= 16


def test_logprobs(client):
    answer = chat(client, max_tokens=4, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
        assert entry.logprob == entry.top_logprobs[0].logprob  # greedy
        assert bytes(entry.bytes).decode(errors="replace") == entry.token


def test_seeds(client):
    def text(**more):
        return complete(client, prompt="Once", temperature=1, max_tokens=24, **more).choices[0].text

    assert text(seed=42) == text(seed=42)
    assert text(seed=0) == text(seed=0)
    assert len({text() for _ in range(4)}) > 1


def test_two_conversations_at_once(client):
    def talk(animal):
        messages = [{"role": "user", "content": f"Tell me a story about a {animal}."}]
        texts = []
        for _ in range(2):
            answer = chat(client, messages=messages).choices[0].message
            texts.append(answer.content)
            messages += [
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": "Go on."},
            ]
        return texts

    alone = [talk("fox"), talk("crow")]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert list(pool.map(talk, ["fox", "crow"])) == alone


def test_abort_in_the_middle_frees_the_slot(client, server):
    stream = chat(client, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    for _, chunk in zip(range(3), stream):
        assert chunk.choices
    stream.close()

    def is_idle():
        return server.json("/slots")[1] and not any(
            slot["is_processing"] for slot in server.json("/slots")[1]
        )

    for _ in range(1000):
        if is_idle():
            break
    assert is_idle()


@pytest.mark.parametrize(
    "more, error, code",
    [
        ({"temperature": -1}, openai.BadRequestError, None),
        ({"extra_body": {"temperature": "hot"}}, openai.BadRequestError, None),
        ({"max_tokens": 0}, openai.BadRequestError, None),
        ({"max_tokens": -5}, openai.BadRequestError, None),
        ({"max_tokens": 10**9}, openai.BadRequestError, "context_length_exceeded"),
        ({"messages": []}, openai.BadRequestError, None),
        ({"messages": [{"role": "user", "content": 7}]}, openai.BadRequestError, None),
        ({"messages": [{"content": "no role"}]}, openai.BadRequestError, None),
        ({"top_p": 2}, openai.BadRequestError, None),
        ({"logit_bias": {"2048": 5}}, openai.BadRequestError, None),
        ({"logit_bias": {"AI": -100}}, openai.BadRequestError, None),
        ({"stop": ["x"] * 17}, openai.BadRequestError, None),
        # The client's name for every status from 500: what is not built answers 501.
        ({"n": 2}, openai.InternalServerError, "unsupported"),
        (
            {"response_format": {"type": "json_object"}},
            openai.InternalServerError,
            "unsupported",
        ),
    ],
)
def test_refusals_name_what_is_wrong(client, more, error, code):
    with pytest.raises(error) as caught:
        chat(client, **more)
    body = caught.value.body
    assert body["message"] and "\n" not in body["message"]
    assert body["type"] == "invalid_request_error"
    assert body["code"] == code


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=QUESTION)
    assert caught.value.body["code"] == "model_not_found"


def test_a_conversation_finds_its_beginning_again(client):
    system = "You are a storyteller. " * 40
    messages = [{"role": "system", "content": system}, *QUESTION]
    first = chat(client, messages=messages)
    second = chat(client, messages=messages)
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert 0 < cached < second.usage.prompt_tokens and cached % 64 == 0
    assert second.choices[0].message.content == first.choices[0].message.content


def test_keys(start_server, tmp_path):
    import hashlib

    keys = tmp_path / "keys"
    keys.write_text(hashlib.sha256(b"secret").hexdigest() + "\n")
    server = start_server("--api-key-file", str(keys))

    def ask(key):
        client = openai.OpenAI(base_url=server.http + "/v1", api_key=key, max_retries=0)
        return client.models.list().data[0].id

    assert ask("secret") == MODEL
    with pytest.raises(openai.AuthenticationError) as caught:
        ask("wrong")
    assert caught.value.body["code"] == "invalid_api_key"
    assert server.request("/health")[0] == 200
    assert server.stop() == 0
