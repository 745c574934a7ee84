"""Schemathesis over the OpenAPI schema: whatever is sent that fits it, or does not, no answer is a 500."""

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

from tests.serving.running import Running

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
BOUNDED = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
POSITIVE = schemathesis.GenerationMode.POSITIVE  # what fits; without a body there is nothing else


def image() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "PNG")
    return file.getvalue()


schemathesis.openapi.format("binary", st.just(image()) | st.binary(max_size=100))


def test_whatever_is_sent_there_is_a_proper_answer(server: Running) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    answered: dict[str, list[int]] = defaultdict(list)
    for found in schema.get_all_operations():
        operation = found.ok()
        modes = list(schemathesis.GenerationMode) if operation.method == "post" else [POSITIVE]
        for mode in modes:

            @BOUNDED
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: schemathesis.Case) -> None:
                answer = case.call_and_validate(checks=CHECKS, timeout=60)
                answered[case.operation.label].append(answer.status_code)

            check()
    assert {"POST /translate", "POST /detect", "POST /api/translate", "POST /api/translate/stream"} <= set(answered)
    assert 200 in answered["POST /api/classify"]
    assert sum(map(len, answered.values())) > 100
