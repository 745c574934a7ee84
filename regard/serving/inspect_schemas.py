"""What the page asks under /api/inspect/, and what it gets where that is JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from regard.serving.schemas import Code, Request, Text

Name = Annotated[Text, Field(min_length=1, max_length=80, examples=["decoder.1.cross"])]
Place = Annotated[int, Field(ge=0, le=100_000)]


class InspectRequest(Request):
    """A sentence, and the model that is looked into."""

    model_config = ConfigDict(extra="forbid")

    text: Text = Field(min_length=1, description="a sentence; it is not split")
    model: Code | None = Field(None, description="name of a model, as /api/models lists them")


class TranslationRequest(InspectRequest):
    """For translations and what they looked at."""

    n_best: int = Field(1, ge=1, le=1000)


class AttentionRequest(InspectRequest):
    """For what all heads looked at."""

    target: list[Place] | None = Field(
        None, max_length=8192, description="tokens of the translation, as /api/inspect/translation gives them"
    )


class MapRequest(AttentionRequest):
    """For what one head looked at."""

    name: Name
    head: Place | None = Field(None, description="the mean of all unless given")
    quantity: Literal["weights", "scores"] = "weights"


class ArithmeticRequest(AttentionRequest):
    """For one query of one head."""

    name: Name
    head: Place
    query: Place


class SearchChoice(BaseModel):
    """How to search; what is not given stays as the server has it."""

    model_config = ConfigDict(extra="forbid")

    beam: int | None = Field(None, ge=1, le=16)
    length_penalty: Literal["average", "wu", "none"] | None = None
    alpha: float | None = Field(None, ge=0, le=10)
    temperature: float | None = Field(None, ge=0.01, le=100, description="sample instead of searching a beam")
    seed: int | None = Field(None, ge=0, le=2**31, description="of the sample")
    iterations: int | None = Field(None, ge=1, le=20, description="of a model that writes all tokens at once")
    lengths: int | None = Field(None, ge=1, le=16, description="that such a model tries")


class BeamRequest(InspectRequest):
    """For the way to a translation."""

    search: SearchChoice = SearchChoice()


class ChangeRequest(InspectRequest):
    """For a translation by a model that is changed meanwhile."""

    factors: dict[Name, dict[Place, Annotated[float, Field(ge=-10, le=10)]]] = Field(
        default_factory=dict, description="by what heads are multiplied: {attention: {head: factor}}", max_length=1000
    )
    sharpness: float = Field(1.0, ge=0.01, le=10, description="by what the scale of all scores is multiplied")
    search: SearchChoice = SearchChoice()


class PositionsRequest(Request):
    """For what a model knows of places."""

    model_config = ConfigDict(extra="forbid")

    model: Code | None = Field(None, description="name of a model, as /api/models lists them")
    length: int = Field(64, ge=2, le=512)


class ImageRequest(Request):
    """Fields beside an image."""

    model: Code | None = Field(None, description="name of a model, as /api/models lists them")
    patch: Place | None = Field(None, description="show what this patch looked at, in place of the answer")


class ViewsRequest(Request):
    """Fields beside two images."""

    model: Code | None = Field(None, description="name of a model, as /api/models lists them")


class ShownTranslation(BaseModel):
    """A translation, token by token."""

    text: str
    score: float
    tokens: list[int]
    labels: list[str]
    probabilities: list[float]


class BeamNode(BaseModel):
    """A hypothesis that was considered; its parent is the number of another node, or -1."""

    parent: int
    step: int
    piece: str
    fate: str
    logp: float | None
    total: float | None
    score: float | None


class CanvasRound(BaseModel):
    """The canvas after one pass."""

    pieces: list[str]
    probabilities: list[float]
    written: list[bool]


class Canvas(BaseModel):
    """A result of writing all tokens at once, and its rounds."""

    text: str
    score: float
    rounds: list[CanvasRound]


class BeamAnswer(BaseModel):
    """How a translation was found: a tree, or canvases."""

    text: str
    score: float
    settings: dict[str, str | int | float | bool | None]
    length: str | None = Field(description="how a model that writes all tokens at once knows how many")
    tree: list[BeamNode]
    canvases: list[Canvas] = Field(description="best first")


class ChangeAnswer(BaseModel):
    """The translation, and how many heads each attention has."""

    translation: ShownTranslation
    heads: dict[str, int]
