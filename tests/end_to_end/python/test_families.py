"""Reasoning, tool calls and prefix hits with the `openai` client, for each family of models.

A model with random weights calls no tools by itself. So the files here have tokens whose text is a
whole piece of an answer, and a request says by logit_bias in which order they come.
"""

import json
import os
import pathlib
import struct
import subprocess

import pytest

import gguf_patch
from conftest import BINARY, GrpcClient, prompt_ids, running

openai = pytest.importorskip("openai")

TEMPLATES = pathlib.Path(os.environ["SWITCHYARD_CHAT_TEMPLATES"])

CALLS_AS_JSON = [
    '<tool_call>\n{"name": "w", "arguments": {"z": "Bern & \\"Köln\\"", "a": 3}}\n</tool_call>',
    '\n<tool_call>\n{"name": "w", "arguments": {"z": "12"}}\n</tool_call>',
]
CALLS_AS_TAGS = [
    "<tool_call>\n<function=w>\n<parameter=z>\nBern & \"Köln\"\n</parameter>\n"
    "<parameter=a>\n3\n</parameter>\n</function>\n</tool_call>",
    "\n<tool_call>\n<function=w>\n<parameter=z>\n12\n</parameter>\n</function>\n</tool_call>",
]
ARGUMENTS = [{"z": 'Bern & "Köln"', "a": 3}, {"z": "12"}]
THOUGHT = "I should look it up."
SECOND_THOUGHT = "Now I know."
ANSWER = "It rains in Bern."
SECOND_ANSWER = "Take an umbrella."
TOOL_RESULT = '{"weather": "rain"}'

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "w",
            "description": "The weather of a place.",
            "parameters": {
                "type": "object",
                "properties": {"z": {"type": "string"}, "a": {"type": "integer"}},
                "required": ["z"],
            },
        },
    }
]
QUESTION = [
    {"role": "system", "content": "You answer questions about the weather, and you are brief."},
    {"role": "user", "content": "What is the weather like in Bern, and in the twelfth district?"},
]


class Family:
    """An architecture with the template of its models; what of it a test needs to know."""

    def __init__(self, architecture, template, calls, opens_reasoning, can_switch, reasons=True):
        self.architecture = architecture
        self.template = template
        self.calls = calls
        self.opens_reasoning = opens_reasoning  # the prompt ends with <think>
        self.can_switch = can_switch  # enable_thinking false has an effect
        self.reasons = reasons
        self.name = f"{architecture}-{template}"

    def reasoning(self, thought):
        """The pieces of the vocabulary with which an answer thinks."""
        if not self.reasons:
            return []
        return ([] if self.opens_reasoning else ["<think>\n"]) + [thought, "\n</think>\n\n"]


FAMILIES = [
    Family("qwen3moe", "tools_as_json", CALLS_AS_JSON, False, True),
    Family("qwen3moe", "tools_as_tags", CALLS_AS_TAGS, False, False, reasons=False),
    Family("qwen3next", "always_thinking", CALLS_AS_JSON, True, False),
    Family("qwen35moe", "content_macro", CALLS_AS_TAGS, True, True),
    Family("qwen4exp", "reasoning_effort", CALLS_AS_TAGS, True, True),
]
END = "<|im_end|>"


def write_model(family, folder):
    """Returns the path of a model and the ids of its pieces by text."""
    path = folder / f"{family.name}.gguf"
    subprocess.run(
        [BINARY, "synth", path, "--arch", family.architecture, "--preset", "tiny"],
        check=True,
        capture_output=True,
    )
    model = gguf_patch.GgufFile(path)
    pieces = [
        "<think>\n", "\n</think>\n\n", THOUGHT, SECOND_THOUGHT, ANSWER, SECOND_ANSWER,
        *family.calls,
    ]  # fmt: skip
    rows = model.ids_of_type(gguf_patch.UNUSED)
    assert len(rows) >= 2 * len(pieces)
    # Each text twice: prompts are encoded with the first row of a text, answers written with the
    # second. So no piece of an answer stands in a prompt, where penalties would count it.
    for row, piece in zip(rows, pieces + pieces):
        model.set_token(row, piece, gguf_patch.USER_DEFINED)
    ids = dict(zip(pieces, rows[len(pieces) :]))
    ids[END] = model.id_of(END)
    model.set_string(
        "tokenizer.chat_template", (TEMPLATES / f"{family.template}.jinja").read_text()
    )
    model.write(path)
    return path, ids


class Served:
    """A running server of a family's model."""

    def __init__(self, family, server, ids):
        self.family = family
        self.server = server
        self.ids = ids
        self.client = openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0)

    def chat(self, messages, script=None, **more):
        if script is not None:
            more |= self.steered(script)
        more.setdefault("temperature", 0)
        more.setdefault("tools", TOOLS)
        return self.client.chat.completions.create(
            model=self.family.name, messages=messages, **more
        )

    def steered(self, script):
        """Parameters with which the answer is the pieces of `script`, each once, and then the end.

        The pieces have the biases 99, 85, 71, 57, 43. One that has come is divided by 4 and loses
        2 + 2, so it is at 20.75 or below. The end token stands in every prompt, so the same
        division leaves 25 of its 100: below all pieces to come, above all that have come. The
        nearest of these are 14 apart before, or 4.25 * 4 = 17 after the division: logits that are
        less than 14 apart leave the order as it is, and a test whose script is not followed fails.
        """
        assert len(script) <= 5 and len(set(script)) == len(script)
        bias = {str(self.ids[piece]): 99 - 14 * n for n, piece in enumerate(script)}
        bias[str(self.ids[END])] = 100
        return {
            "logit_bias": bias,
            "presence_penalty": 2,
            "frequency_penalty": 2,
            "max_tokens": len(script) + 1,
            "extra_body": {"repetition_penalty": 4},
        }

    def stream(self, messages, script, **more):
        """The message that the chunks of a stream make, with the finish reason and usage."""
        message = {"content": "", "reasoning_content": "", "tool_calls": []}
        reasons, usage = [], None
        options = {"stream": True, "stream_options": {"include_usage": True}}
        for chunk in self.chat(messages, script, **options, **more):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                delta = choice.delta
                message["content"] += delta.content or ""
                message["reasoning_content"] += (delta.model_extra or {}).get(
                    "reasoning_content"
                ) or ""
                for part in delta.tool_calls or []:
                    if part.index == len(message["tool_calls"]):
                        assert part.id and part.type == "function"
                        message["tool_calls"].append([part.id, part.function.name, ""])
                    message["tool_calls"][part.index][2] += part.function.arguments
                reasons.append(choice.finish_reason)
        assert reasons[:-1] == [None] * (len(reasons) - 1)
        return message, reasons[-1], usage


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def served(request, tmp_path_factory):
    path, ids = write_model(request.param, tmp_path_factory.mktemp("model"))
    with running("--slots", "4", "--prefix-cache-bytes", "64M", model=str(path)) as server:
        yield Served(request.param, server, ids)
        assert server.json("/health")[0] == 200
        assert server.stop() == 0


def reasoning_of(message):
    return (message.model_extra or {}).get("reasoning_content")


def thinking(is_on):
    return {"chat_template_kwargs": {"enable_thinking": is_on}}


def with_body(parameters, body):
    """Adds fields that the client does not know."""
    return parameters | {"extra_body": parameters.get("extra_body", {}) | body}


def test_the_model_is_of_its_family(served):
    model = served.client.models.list().data[0]
    assert model.id == served.family.name
    assert model.model_extra["meta"]["architecture"] == served.family.architecture
    props = served.server.json("/props")[1]
    assert props["chat_template_source"] == "model"
    assert props["supports_tools"]
    assert props["supports_thinking"] == served.family.can_switch


def test_reasoning_is_apart_from_content(served):
    family = served.family
    script = family.reasoning(THOUGHT) + [ANSWER]
    answer = served.chat(QUESTION, script)
    choice = answer.choices[0]
    assert choice.message.content == ANSWER
    assert reasoning_of(choice.message) == (THOUGHT if family.reasons else None)
    assert not choice.message.tool_calls
    assert choice.finish_reason == "stop"
    assert answer.usage.completion_tokens == len(script) + 1

    message, reason, usage = served.stream(QUESTION, script)
    assert message["content"] == ANSWER
    assert message["reasoning_content"] == (THOUGHT if family.reasons else "")
    assert message["tool_calls"] == []
    assert reason == "stop"
    assert usage.completion_tokens == len(script) + 1


def test_thinking_can_be_switched_off_where_the_template_knows_it(served):
    family = served.family
    prompt = {
        is_on: served.server.json(
            "/apply-template", {"messages": QUESTION, "tools": TOOLS, **thinking(is_on)}
        )[1]["prompt"]
        for is_on in (True, False)
    }
    assert (prompt[True] != prompt[False]) == family.can_switch
    assert prompt[True].endswith("<think>\n") == family.opens_reasoning
    parameters = with_body(served.steered([ANSWER]), thinking(False))
    message = served.chat(QUESTION, **parameters).choices[0].message
    if family.can_switch or not family.reasons:
        assert prompt[False].endswith("\n</think>\n\n") == family.can_switch
        assert message.content == ANSWER
        assert reasoning_of(message) is None
    else:
        # The prompt has opened the reasoning whatever was asked for, and the answer never ends it.
        assert reasoning_of(message) == ANSWER
        assert not message.content


def check_calls(calls, arguments):
    """`calls`: (id, name, arguments)."""
    assert [name for _, name, _ in calls] == ["w"] * len(arguments)
    assert [json.loads(text) for _, _, text in calls] == arguments
    ids = [call_id for call_id, _, _ in calls]
    assert all(ids) and len(set(ids)) == len(ids)


@pytest.mark.parametrize("count", [1, 2])
def test_tool_calls(served, count):
    family = served.family
    script = family.reasoning(THOUGHT) + family.calls[:count]
    answer = served.chat(QUESTION, script)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert reasoning_of(choice.message) == (THOUGHT if family.reasons else None)
    assert all(call.type == "function" for call in choice.message.tool_calls)
    calls = [
        (call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls
    ]
    check_calls(calls, ARGUMENTS[:count])

    message, reason, _ = served.stream(QUESTION, script)
    assert reason == "tool_calls"
    assert message["content"] == ""
    assert message["reasoning_content"] == (THOUGHT if family.reasons else "")
    check_calls(message["tool_calls"], ARGUMENTS[:count])
    # Ids are of one answer, arguments the same text either way.
    assert not {call[0] for call in calls} & {call[0] for call in message["tool_calls"]}
    assert [call[2] for call in calls] == [call[2] for call in message["tool_calls"]]


def test_calls_are_text_where_no_tools_were_given(served):
    family = served.family
    before = ["\n</think>\n\n"] if family.opens_reasoning else []
    parameters = served.steered(before + family.calls[:1])
    choice = served.chat(QUESTION, tools=openai.NOT_GIVEN, **parameters).choices[0]
    assert choice.message.content == family.calls[0]
    assert not choice.message.tool_calls
    assert choice.finish_reason == "stop"


def second_turn(served):
    """A conversation in which the model called a tool and got its answer."""
    family = served.family
    before = ["\n</think>\n\n"] if family.opens_reasoning else []
    message = served.chat(QUESTION, before + family.calls[:1]).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": TOOL_RESULT}
    return [*QUESTION, message.to_dict(), result]


def test_the_answer_of_a_tool_is_a_second_turn(served):
    family = served.family
    messages = second_turn(served)
    prompt = served.server.json("/apply-template", {"messages": messages, "tools": TOOLS})[1][
        "prompt"
    ]
    # The call stands in the prompt as the model wrote it.
    called = prompt.index(family.calls[0])
    answered = prompt.index(f"<tool_response>\n{TOOL_RESULT}\n</tool_response>")
    assert called < answered
    script = family.reasoning(SECOND_THOUGHT) + [SECOND_ANSWER]
    answer = served.chat(messages, script)
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == SECOND_ANSWER
    assert reasoning_of(choice.message) == (SECOND_THOUGHT if family.reasons else None)
    assert not choice.message.tool_calls
    message, reason, _ = served.stream(messages, script)
    assert (message["content"], reason) == (SECOND_ANSWER, "stop")


def test_the_second_turn_finds_the_first_one_again(served):
    messages = second_turn(served)
    free = {"max_tokens": 24, "extra_body": {"ignore_eos": True}}
    hit = served.chat(messages, **free, logprobs=True, top_logprobs=4)
    cold = served.chat(
        messages, **with_body(free, {"cache_salt": "cold"}), logprobs=True, top_logprobs=4
    )
    usage = hit.usage
    cached = usage.prompt_tokens_details.cached_tokens
    assert 0 < cached < usage.prompt_tokens and cached % 64 == 0
    assert cold.usage.prompt_tokens_details.cached_tokens == 0
    assert cold.usage.prompt_tokens == usage.prompt_tokens
    assert hit.choices[0].to_dict() == cold.choices[0].to_dict()


def test_seeds(served):
    def texts(seed):
        parameters = {"temperature": 1, "seed": seed, "max_tokens": 24}
        choice = served.chat(QUESTION, **parameters, extra_body={"ignore_eos": True}).choices[0]
        return reasoning_of(choice.message), choice.message.content

    assert texts(1) == texts(1)
    assert texts(2) == texts(2)
    assert texts(1) != texts(2)


def test_http_and_grpc_answer_alike(served):
    prompt = [token_id % 400 for token_id in prompt_ids(90)]
    answer = served.client.completions.create(
        model=served.family.name,
        prompt=prompt,
        max_tokens=48,
        temperature=0,
        logprobs=0,
        extra_body={"ignore_eos": True},
    )
    client = GrpcClient(served.server.grpc)
    try:
        spec = client.spec(token_ids=prompt, max_tokens=48)
        spec.stop.ignore_eos = True
        spec.output.logprobs_top_n = 1
        result = client.generate(spec)
    finally:
        client.channel.close()
    assert len(result.token_ids) == answer.usage.completion_tokens == 48
    assert answer.choices[0].text == result.text
    # Greedy: the token itself is the most likely one. Each form gives the same 32 bits.
    by_grpc = [position.top[0] for position in result.logprobs]
    assert [top.token_id for top in by_grpc] == list(result.token_ids)
    by_http = answer.choices[0].logprobs.token_logprobs
    assert [struct.pack("f", value) for value in by_http] == [
        struct.pack("f", top.logprob) for top in by_grpc
    ]
