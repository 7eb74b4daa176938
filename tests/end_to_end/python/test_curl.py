"""What somebody sees who types `curl`."""

import json
import shutil
import subprocess

import pytest

CURL = shutil.which("curl")
pytestmark = pytest.mark.skipif(CURL is None, reason="there is no curl")

CHAT = {
    "messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}],
    "temperature": 0,
    "max_tokens": 16,
    "chat_template_kwargs": {"enable_thinking": False},
}


def curl(server, path, *arguments, data=None):
    """Returns (status, content type without its parameters, body)."""
    if data is not None:
        arguments = (*arguments, "-H", "Content-Type: application/json", "--data-binary", "@-")
    result = subprocess.run(
        [CURL, "-sS", "--noproxy", "*", "--max-time", "60", "-w", "\n%{http_code} %{content_type}",
         *arguments, server.http + path],
        input=data, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    body, _, facts = result.stdout.rpartition("\n")
    status, _, content_type = facts.partition(" ")
    return int(status), content_type.partition(";")[0], body


def test_unary(server):
    status, content_type, body = curl(server, "/v1/chat/completions", data=json.dumps(CHAT))
    assert (status, content_type) == (200, "application/json")
    answer = json.loads(body)
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] <= 16


def test_streamed(server):
    unary = json.loads(curl(server, "/v1/chat/completions", data=json.dumps(CHAT))[2])
    status, content_type, body = curl(
        server, "/v1/chat/completions", "-N", data=json.dumps({**CHAT, "stream": True})
    )
    assert (status, content_type) == (200, "text/event-stream")
    events = body.strip().split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == unary["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "data", ["", "{", "[1, 2]", '{"messages": [}', '{"a": 1} x', "{'a': 1}", '{"a": 01}']
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
def test_bad_json(server, path, data):
    status, content_type, body = curl(server, path, data=data)
    assert (status, content_type) == (400, "application/json")
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"] and "\n" not in error["message"]


def test_head_and_wrong_methods(server):
    status, _, body = curl(server, "/health", "-I")
    assert status == 200 and "X-Request-Id: " in body
    status, _, body = curl(server, "/v1/chat/completions")
    assert status == 405 and "POST" in json.loads(body)["error"]["message"]
    assert curl(server, "/nothing")[0] == 404
