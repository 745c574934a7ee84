"""Schemas of requests and responses of LibreTranslate's API and of our API under /api/."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from regard.data.text.glossary import Glossary
from regard.errors import UserError
from regard.files import parse_json
from regard.serving.messages import Alignment, Terms

MAX_TERMS = 1000
"""Maximum number of terms in the glossary of a request."""


def _check_encodable(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("contains an unpaired surrogate") from None
    return text


Text = Annotated[str, AfterValidator(_check_encodable)]


def _parse_terms(value: object) -> Terms:
    """Check the terms of a glossary; in a form field, they are JSON."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            raise ValueError('expected JSON such as {"cat": "猫"}, found other text') from None
    try:
        glossary = Glossary.parse(value)
    except UserError as error:
        raise ValueError(str(error)) from None
    if len(glossary) > MAX_TERMS:
        raise ValueError(f"has {len(glossary):,} terms, but a request may have {MAX_TERMS:,}")
    return tuple((term.source, term.target) for term in glossary.terms)


TERMS_SCHEMA = {
    "anyOf": [
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}},
    ],
    "maxItems": MAX_TERMS,
    "description": "terms that are translated as given: an object, or pairs; in a form, as JSON",
    "examples": [{"apple": "苹果"}],
}
GlossaryTerms = Annotated[Terms, BeforeValidator(_parse_terms), WithJsonSchema(TERMS_SCHEMA)]
Name = Annotated[Text, Field(min_length=1, max_length=40)]
ModelName = Annotated[Name | None, Field(description="name from /api/models; default: the first suitable model")]
Language = Annotated[Name | None, Field(description="language code; or give model")]


class BaseRequest(BaseModel):
    """Base of all requests. Unknown fields are ignored, because clients of LibreTranslate send their own."""

    api_key: Text | None = Field(None, max_length=400, description="required if the server uses keys")


class StrictRequest(BaseRequest):
    """Base of the requests of our own API, which rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")


class ErrorResponse(BaseModel):
    """An error message."""

    error: str


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The request is invalid"},
    403: {"model": ErrorResponse, "description": "The API key is missing or invalid"},
    408: {"model": ErrorResponse, "description": "The request did not arrive in time"},
    413: {"model": ErrorResponse, "description": "The request is too large"},
    429: {"model": ErrorResponse, "description": "Too many requests; see Retry-After"},
    500: {"model": ErrorResponse, "description": "Internal error"},
    503: {"model": ErrorResponse, "description": "The models are still loading, or the server is shutting down"},
    504: {"model": ErrorResponse, "description": "The request was not answered before its deadline"},
    "4XX": {"model": ErrorResponse, "description": "Other errors of the request"},  # replaces FastAPI's own for 422
}
"""Error responses of every endpoint, for the OpenAPI schema."""


# LibreTranslate's API


class TranslateRequest(BaseRequest):
    """Texts to translate."""

    q: Text | list[Text] = Field(description="a text or a list of texts", min_length=1)
    source: Name = Field(description="language code, or auto", examples=["en"])
    target: Name = Field(examples=["zh"])
    format: Literal["text", "html"] = Field("text", description="html keeps tags")
    alternatives: int = Field(0, ge=0, le=1000, description="number of alternative translations per text")
    glossary: GlossaryTerms = ()
    confidence: bool = Field(False, description="return confidence and flags; not part of LibreTranslate's API")


class TranslateFileRequest(BaseRequest):
    """Form fields of a request to translate a document."""

    source: Name = Field(description="language code, or auto", examples=["en"])
    target: Name = Field(examples=["zh"])
    model: ModelName = None
    column: Text | None = Field(None, max_length=200, description="column of a CSV file")
    key: Text | None = Field(None, max_length=200, description="key of a JSON file whose values are translated")
    glossary: GlossaryTerms = ()
    job: str | None = Field(
        None, pattern=r"^[\w-]{8,64}$", description="name for /api/files/{job}, chosen by the client"
    )


class UntranslatedText(BaseModel):
    """A text of a document that is not translated."""

    model_config = ConfigDict(from_attributes=True)

    where: str
    text: str
    reason: str


class TranslateFileResponse(BaseModel):
    """Address of the translated document, and what is not translated (the first texts of each document)."""

    translatedFileUrl: str  # noqa: N815
    segments: int
    sentences: int
    untranslated: list[UntranslatedText]
    untranslatedCount: int  # noqa: N815
    placed: int = Field(description="segments with placeholders that the model did not keep and that were put back")


class FileProgress(BaseModel):
    """Progress of a document."""

    done: int
    total: int


class DetectRequest(BaseRequest):
    """A text whose language is detected."""

    q: Text = Field(min_length=1)


class Detection(BaseModel):
    """A language and its probability in per cent."""

    confidence: float
    language: str


class ApiTerm(BaseModel):
    """An occurrence of a glossary term; `kept` if the translation contains the term's translation."""

    source: str
    start: int = Field(description="position in the sentence")
    target: str
    kept: bool


class TranslateResponse(BaseModel):
    """Translations; lists if `q` is a list. `detectedLanguage` is present if the source is auto."""

    translatedText: str | list[str]  # noqa: N815  LibreTranslate's name
    detectedLanguage: Detection | list[Detection] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    confidence: float | list[float | None] | None = Field(
        None, description="if requested: calibrated probability; the lowest of the sentences of a text"
    )
    flags: dict[str, str] | list[dict[str, str]] | None = Field(None, description="if requested: suspected faults")
    warnings: list[str] | None = Field(None, description="sentences that are longer than those of the training data")
    terms: list[ApiTerm] | list[list[ApiTerm]] | None = Field(
        None, description="terms of the glossary in each text, present if a glossary is given"
    )


class LanguageName(BaseModel):
    """A language."""

    code: str
    name: str


class LanguageTargets(LanguageName):
    """A language and its target languages."""

    targets: list[str]


class DefaultLanguages(BaseModel):
    """The languages that a page selects first."""

    source: LanguageName
    target: LanguageName


class FrontendSettings(BaseModel):
    """Settings of the server for web pages."""

    charLimit: int  # noqa: N815
    frontendTimeout: int  # noqa: N815
    apiKeys: bool  # noqa: N815
    keyRequired: bool  # noqa: N815
    suggestions: bool = False
    filesTranslation: bool = False  # noqa: N815
    supportedFilesFormat: list[str] = []  # noqa: N815
    language: DefaultLanguages


class Status(BaseModel):
    """Status of the server."""

    status: str


# Our API


class TextsRequest(StrictRequest):
    """Texts for a model."""

    texts: Text | list[Text] = Field(min_length=1)
    model: ModelName = None

    @property
    def text_list(self) -> list[str]:
        return [self.texts] if isinstance(self.texts, str) else self.texts


class ApiTranslateRequest(TextsRequest):
    """Texts to translate, and details to return."""

    source: Language = None
    target: Language = None
    n_best: int = Field(1, ge=1, le=1000, description="number of translations per sentence")
    alignments: bool = Field(False, description="return cross-attention weights between target and source tokens")
    split: bool = Field(True, description="split texts into sentences")
    glossary: GlossaryTerms = ()
    confidence: bool = Field(False, description="return confidences of translations and tokens, and flags")


class ApiToken(BaseModel):
    """A token of a translation: its range of characters, and its calibrated probability."""

    start: int
    end: int
    confidence: float


class ApiTranslation(BaseModel):
    """A translation of a sentence, with its alignment, confidences and flags if they were requested."""

    text: str
    score: float
    terms: list[ApiTerm] | None = Field(None, description="present if a glossary is given")
    confidence: float | None = Field(None, description="calibrated probability; null if the model is not calibrated")
    flags: dict[str, str] | None = Field(None, description="suspected faults by name, each with a detail")
    tokens: list[ApiToken] | None = None
    alignment: Alignment | None = None


class ApiSentence(BaseModel):
    """A sentence and its translations, best first."""

    source: str
    translations: list[ApiTranslation]
    warning: str | None = Field(None, description="present if the sentence is longer than those of the training data")


class ApiText(BaseModel):
    """The translation of a text, and its sentences."""

    text: str
    sentences: list[ApiSentence]


class ApiTranslateResponse(BaseModel):
    """Translations of all texts."""

    model: str
    texts: list[ApiText]


class ApiEmbedRequest(TextsRequest):
    """Texts to embed."""

    pool: Literal["mean", "none"] = Field("mean", description="one vector per text (mean) or per token (none)")


class ApiEmbedResponse(BaseModel):
    """Encoder outputs."""

    model: str
    vectors: list[list[float]] | list[list[list[float]]]


class ImageRequest(BaseRequest):
    """Form or query fields of a request with images."""

    model: ModelName = None


class ClassifyRequest(ImageRequest):
    """Form or query fields of a request to classify images."""

    top: int = Field(5, ge=1, le=1000, description="number of classes per image")


class ApiClass(BaseModel):
    """A class and its probability."""

    name: str
    probability: float


class ApiImage(BaseModel):
    """The most probable classes of an image, in descending order."""

    classes: list[ApiClass]


class ApiClassifyResponse(BaseModel):
    """Classes of all images."""

    model: str
    images: list[ApiImage]


class ApiModel(BaseModel):
    """A served model."""

    model_config = ConfigDict(from_attributes=True)  # created from ModelInfo

    name: str
    kind: str
    operations: list[str]
    parameters: int
    source: str | None
    target: str | None
    sources: list[str] = Field(description="the source language, and the other script of Chinese if it is converted")
    targets: list[str]
    classes: list[str]
    sections: list[str] = Field(description="supported sections of the page")
    lacks: str | None = Field(description="missing part of the model folder, such as tokenizer")
    engine: str = Field(description="regard, or ctranslate2, which does not support inspection")
    search: dict[str, str | int | float | bool | None] = Field(description="default search settings")


class ApiModels(BaseModel):
    """All served models."""

    models: list[ApiModel]
