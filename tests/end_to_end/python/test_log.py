"""What the server writes about requests, and what it does not."""


def test_a_request_is_one_line_without_its_text(start_server):
    server = start_server()
    body = {"prompt": "A very private lantern", "max_tokens": 8, "ignore_eos": True}
    status, _, _ = server.request("/v1/completions", body, headers={"x-request-id": "mine"})
    assert status == 200
    line = server.wait_for(r"request ended: (id=mine .*)$", log=True)
    for part in ("api=openai", "reason=", "prompt_tokens=", "completion_tokens=8", "ttft_ms="):
        assert part in line
    assert server.stop() == 0
    log = "\n".join(filter(None, server.log))
    assert log.count("request ended") == 1
    assert "private" not in log
