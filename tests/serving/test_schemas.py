"""Limits of the fields of requests: the lowest and highest values are accepted, others rejected."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from regard.serving.page_schemas import (
    ArithmeticRequest,
    BeamRequest,
    ChangeRequest,
    InspectRequest,
    MapRequest,
    PatchRequest,
    PositionsRequest,
    SearchOptions,
    TranslationRequest,
)
from regard.serving.schemas import ApiTranslateRequest, ClassifyRequest, DetectRequest, TextsRequest, TranslateRequest

VALID: dict[type[BaseModel], dict[str, Any]] = {
    TranslateRequest: {"q": "x", "source": "en", "target": "zh"},
    DetectRequest: {"q": "x"},
    TextsRequest: {"texts": "x"},
    ApiTranslateRequest: {"texts": "x"},
    ClassifyRequest: {},
    InspectRequest: {"text": "x"},
    TranslationRequest: {"text": "x"},
    MapRequest: {"text": "x", "name": "decoder.1.cross"},
    ArithmeticRequest: {"text": "x", "name": "decoder.1.cross", "head": 0, "query": 0},
    SearchOptions: {},
    BeamRequest: {"text": "x"},
    ChangeRequest: {"text": "x"},
    PositionsRequest: {},
    PatchRequest: {},
}


@pytest.mark.parametrize(
    ("request_type", "field", "lowest", "highest"),
    [
        (TranslateRequest, "alternatives", 0, 1000),
        (ApiTranslateRequest, "n_best", 1, 1000),
        (ClassifyRequest, "top", 1, 1000),
        (TranslationRequest, "n_best", 1, 1000),
        (MapRequest, "head", 0, 100_000),
        (ArithmeticRequest, "query", 0, 100_000),
        (SearchOptions, "beam", 1, 16),
        (SearchOptions, "alpha", 0, 10),
        (SearchOptions, "temperature", 0.01, 100),
        (SearchOptions, "seed", 0, 2**31),
        (SearchOptions, "iterations", 1, 20),
        (SearchOptions, "lengths", 1, 16),
        (ChangeRequest, "sharpness", 0.01, 10),
        (PositionsRequest, "length", 2, 512),
        (PatchRequest, "patch", 0, 100_000),
    ],
)
def test_numbers_between_the_limits_are_accepted(
    request_type: type[BaseModel], field: str, lowest: float, highest: float
) -> None:
    values = VALID[request_type]
    step = 1 if isinstance(lowest, int) else 0.001
    for number in (lowest, highest):
        assert getattr(request_type.model_validate(values | {field: number}), field) == number
    for number in (lowest - step, highest + step):
        with pytest.raises(ValidationError, match=field):
            request_type.model_validate(values | {field: number})


@pytest.mark.parametrize(
    ("request_type", "field", "shortest", "longest"),
    [
        (TranslateRequest, "q", "x", None),
        (TranslateRequest, "q", ["x"], None),
        (TranslateRequest, "source", "x", "x" * 40),
        (TranslateRequest, "api_key", "", "x" * 400),
        (DetectRequest, "q", "x", None),
        (TextsRequest, "texts", "x", None),
        (TextsRequest, "texts", ["x"], None),
        (InspectRequest, "text", "x", None),
        (InspectRequest, "model", "x", "x" * 40),
        (MapRequest, "target", [], [0] * 8192),
        (MapRequest, "name", "x", "x" * 80),
    ],
)
def test_texts_and_lists_between_the_limits_are_accepted(
    request_type: type[BaseModel], field: str, shortest: Any, longest: Any
) -> None:
    values = VALID[request_type]
    for value in filter(lambda value: value is not None, (shortest, longest)):
        assert getattr(request_type.model_validate(values | {field: value}), field) == value
    wrong = ([shortest[:0]] if shortest else []) + ([longest + longest[:1]] if longest else [])
    for value in wrong:
        with pytest.raises(ValidationError, match=field):
            request_type.model_validate(values | {field: value})


def test_factors_of_heads_are_limited() -> None:
    for factor in (-10.0, 10.0):
        request = ChangeRequest.model_validate({"text": "x", "factors": {"decoder.1.cross": {"0": factor}}})
        assert request.factors == {"decoder.1.cross": {0: factor}}
    for factor in (-10.1, 10.1):
        with pytest.raises(ValidationError, match="factors"):
            ChangeRequest.model_validate({"text": "x", "factors": {"decoder.1.cross": {"0": factor}}})


def test_texts_with_unpaired_surrogates_are_rejected() -> None:
    with pytest.raises(ValidationError, match="contains an unpaired surrogate"):
        TextsRequest.model_validate({"texts": "caf\udce9"})
