"""Requests generated from the OpenAPI schema: valid and invalid ones receive responses that match the schema."""

import io
from collections import defaultdict

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving.server_process import ServerProcess

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SETTINGS = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
POSITIVE = schemathesis.GenerationMode.POSITIVE


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "PNG")
    return file.getvalue()


schemathesis.openapi.format("binary", st.just(png()) | st.binary(max_size=100))


def test_responses_match_the_schema(server: ServerProcess) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    statuses: dict[str, list[int]] = defaultdict(list)
    for found in schema.get_all_operations():
        operation = found.ok()
        # Requests without a body cannot be invalid.
        modes = list(schemathesis.GenerationMode) if operation.method == "post" else [POSITIVE]
        for mode in modes:

            @SETTINGS
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: schemathesis.Case) -> None:
                response = case.call_and_validate(checks=CHECKS, timeout=300)
                statuses[case.operation.label].append(response.status_code)

            check()
    assert {"POST /translate", "POST /detect", "POST /api/translate", "POST /api/translate/stream"} <= set(statuses)
    assert 200 in statuses["POST /api/classify"]
    assert sum(map(len, statuses.values())) > 100
