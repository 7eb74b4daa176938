"""The served description holds: requests made from it, valid and not, are answered as it says."""

import os

import pytest

schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")

from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import CHECKS, load_all_checks  # noqa: E402

load_all_checks()
CONFORMANCE = [
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
]
# All but the description itself.
OPERATIONS = [
    ("GET", "/livez"),
    ("GET", "/health"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{id}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("GET", "/props"),
    ("GET", "/slots"),
    ("GET", "/api/residency"),
    ("GET", "/metrics"),
]
GENERATIONS = ["/v1/chat/completions", "/v1/completions", "/v1/messages"]
# Bounds the time of the file: half a minute on two busy cores.
MAX_EXAMPLES = 10 if os.environ.get("SWITCHYARD_SANITIZE") else 30


@pytest.fixture(scope="module")
def description(server):
    return schemathesis.openapi.from_url(server.http + "/openapi.json")


def test_every_operation_is_tried(description):
    described = [
        (operation.ok().method.upper(), operation.ok().path)
        for operation in description.get_all_operations()
    ]
    assert sorted(described) == sorted(OPERATIONS)


def operation_test(description, method, path, mode):
    """A decorator: runs a function for requests to an operation, always the same ones."""

    def decorate(function):
        given = hypothesis.given(case=description[path][method].as_strategy(generation_mode=mode))
        settings = hypothesis.settings(
            max_examples=MAX_EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        return settings(given(function))

    return decorate


def check_answer(server, case, check_names):
    response = case.call(base_url=server.http)
    # What is not built, and what a busy server refuses, are no faults.
    assert response.status_code < 500 or response.status_code in (501, 503), response.text
    case.validate_response(response, checks=CHECKS.get_by_names(check_names))


def has_null_member(value):
    if isinstance(value, dict):
        return any(item is None or has_null_member(item) for item in value.values())
    return isinstance(value, list) and any(map(has_null_member, value))


@pytest.mark.parametrize("method, path", OPERATIONS)
def test_valid_requests_are_answered_as_described(server, description, method, path):
    @operation_test(description, method, path, GenerationMode.POSITIVE)
    def check(case):
        if path in GENERATIONS:
            # Most of the limits that are drawn are beyond any context.
            case.body["max_tokens"] = min(case.body.get("max_tokens", 8), 8)
            case.body.pop("max_completion_tokens", None)
        check_answer(server, case, CONFORMANCE)

    check()


@pytest.mark.parametrize("method, path", [o for o in OPERATIONS if o[0] == "POST"])
def test_invalid_requests_are_refused_as_described(server, description, method, path):
    @operation_test(description, method, path, GenerationMode.NEGATIVE)
    def check(case):
        # By the description's own words null is the same as absent, which no schema here says.
        hypothesis.assume(not has_null_member(case.body))
        check_answer(server, case, [*CONFORMANCE, "negative_data_rejection"])

    check()
