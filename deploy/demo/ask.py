#!/usr/bin/env python3
"""Asks a server one question and prints the answer as it comes.

usage: ask.py URL PROMPT NUM_TOKENS

Needs nothing but Python; any client of OpenAI's API does the same.
"""

import json
import sys
import urllib.error
import urllib.request


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    url, prompt, num_tokens = sys.argv[1:]
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": int(num_tokens),
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        url + "/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        answer = urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        sys.exit(f"ask.py: {json.load(error)['error']['message']}")
    last = {}
    for line in answer:
        data = line.decode().strip().removeprefix("data: ")
        if not data.startswith("{"):
            continue
        last = json.loads(data)
        if "error" in last:
            sys.exit(f"ask.py: {last['error']['message']}")
        for choice in last["choices"]:
            delta = choice["delta"]
            print(delta.get("reasoning_content") or delta.get("content") or "", end="", flush=True)
    usage, timings = last.get("usage") or {}, last.get("timings") or {}
    print()
    print(
        f"prompt {usage.get('prompt_tokens')} tokens, answer {usage.get('completion_tokens')} tokens, "
        f"TTFT {timings.get('ttft_ms', 0):.0f} ms, "
        f"decode {timings.get('predicted_per_second', 0):.1f} tok/s",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
