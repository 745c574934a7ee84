"""What requests and answers look like: LibreTranslate's, and our own under /api/."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from regard.serving.messages import Alignment


def _is_text(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("holds half of a character, a lone surrogate") from None
    return text


Text = Annotated[str, AfterValidator(_is_text)]
Code = Annotated[Text, Field(min_length=1, max_length=40)]


class Request(BaseModel):
    """Base of what is sent to us; keys that are not known are passed over, as clients add their own."""

    api_key: Text | None = Field(None, max_length=400, description="where the server asks for one")


class TranslateRequest(Request):
    """LibreTranslate's request."""

    q: Text | list[Text] = Field(description="a text, or several", min_length=1)
    source: Code = Field(description="code of the language, or auto", examples=["en"])
    target: Code = Field(examples=["zh"])
    format: Literal["text", "html"] = Field("text", description="html keeps its tags")
    alternatives: int = Field(0, ge=0, le=1000, description="further translations a text")


class DetectRequest(Request):
    """LibreTranslate's request for the language of a text."""

    q: Text = Field(min_length=1)


class Detection(BaseModel):
    """A language and how likely it is, in per cent."""

    confidence: float
    language: str


class TranslateAnswer(BaseModel):
    """LibreTranslate's answer: lists where `q` was one, `detectedLanguage` where the source was "auto"."""

    translatedText: str | list[str]  # noqa: N815  LibreTranslate's name
    detectedLanguage: Detection | list[Detection] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None


class Language(BaseModel):
    """A language and into which it can be translated."""

    code: str
    name: str
    targets: list[str]


class LanguageName(BaseModel):
    """A language."""

    code: str
    name: str


class Choice(BaseModel):
    """The languages that a page chooses at first."""

    source: LanguageName
    target: LanguageName


class FrontendSettings(BaseModel):
    """LibreTranslate's settings for pages."""

    charLimit: int  # noqa: N815
    frontendTimeout: int  # noqa: N815
    apiKeys: bool  # noqa: N815
    keyRequired: bool  # noqa: N815
    suggestions: bool = False
    filesTranslation: bool = False  # noqa: N815
    supportedFilesFormat: list[str] = []  # noqa: N815
    language: Choice


class Status(BaseModel):
    """How the server is."""

    status: str


class Error(BaseModel):
    """Why there is no answer."""

    error: str


class ApiTranslateRequest(Request):
    """A text or several, with all that can be asked about their translations."""

    model_config = ConfigDict(extra="forbid")

    texts: Text | list[Text] = Field(min_length=1)
    source: Code | None = Field(None, description="code of the language; or give model")
    target: Code | None = Field(None, description="code of the language; or give model")
    model: Code | None = Field(None, description="name of a model, as /api/models lists them")
    n_best: int = Field(1, ge=1, le=1000, description="translations a sentence")
    alignments: bool = Field(False, description="how much each token looked at each source token")
    split: bool = Field(True, description="split texts into sentences; else each goes through as one")


class ApiAlignment(BaseModel):
    """How much each target token looked at each source token, and which characters the tokens cover."""

    weights: list[list[float]] = Field(description="a row for each target token and END, source tokens and END in it")
    source: list[str]
    target: list[str]
    source_spans: list[tuple[int, int]]
    target_spans: list[tuple[int, int]]

    @classmethod
    def of(cls, alignment: Alignment) -> ApiAlignment:
        return cls(**vars(alignment))


class ApiTranslation(BaseModel):
    """One translation of a sentence, its score, and what it looked at."""

    text: str
    score: float
    alignment: ApiAlignment | None = None


class ApiSentence(BaseModel):
    """A sentence and its translations, best first."""

    source: str
    translations: list[ApiTranslation]


class ApiText(BaseModel):
    """A text's translation, and its sentences."""

    text: str
    sentences: list[ApiSentence]


class ApiTranslateAnswer(BaseModel):
    """An answer for each text."""

    model: str
    texts: list[ApiText]


class ApiEmbedRequest(Request):
    """Texts for their vectors."""

    model_config = ConfigDict(extra="forbid")

    texts: Text | list[Text] = Field(min_length=1)
    model: Code | None = Field(None, description="name of a model, as /api/models lists them")
    pool: Literal["mean", "none"] = Field("mean", description="a vector a text, or one a token")


class ApiEmbedAnswer(BaseModel):
    """The encoder's context-aware vectors."""

    model: str
    vectors: list[list[float]] | list[list[list[float]]]


class ApiClassifyRequest(Request):
    """Fields beside the images, in a form or in the query string."""

    model: Code | None = Field(None, description="name of a model, as /api/models lists them")
    top: int = Field(5, ge=1, le=1000, description="classes an image")


class ApiClass(BaseModel):
    """A class and how likely it is."""

    name: str
    probability: float


class ApiImage(BaseModel):
    """The likeliest classes of an image, the likeliest first."""

    classes: list[ApiClass]


class ApiClassifyAnswer(BaseModel):
    """An answer for each image."""

    model: str
    images: list[ApiImage]


class ApiModel(BaseModel):
    """A model that is served."""

    name: str
    kind: str
    operations: list[str]
    parameters: int
    source: str | None
    target: str | None
    classes: list[str]
    sections: list[str] = Field(description="of the page, which it can fill")
    lacks: str | None = Field(description="what its folder is missing, such as a tokenizer")
    engine: str = Field(description="what computes: regard, or ctranslate2, into which nobody can look")
    search: dict[str, str | int | float | bool | None] = Field(description="how it searches unless it is asked to")


class ApiModels(BaseModel):
    """The models that are served."""

    models: list[ApiModel]
