"""Schemas of requests and responses of the page's API under /api/inspect/."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Json

from regard.serving.schemas import ApiClass, GlossaryTerms, ImageRequest, ModelName, Name, StrictRequest, Text

AttentionName = Annotated[Text, Field(min_length=1, max_length=80, examples=["decoder.1.cross"])]
Index = Annotated[int, Field(ge=0, le=100_000)]


class InspectRequest(StrictRequest):
    """A sentence and the model to inspect."""

    text: Text = Field(min_length=1, description="a sentence; only inspect/sentences splits it")
    model: ModelName = None


class SentenceView(BaseModel):
    """A sentence and its number of tokens, without END; `divided` marks a part of a longer sentence."""

    text: str
    tokens: int
    divided: bool


class SentencesResponse(BaseModel):
    """The sentences of a text."""

    sentences: list[SentenceView]
    source_language_warning: str | None = Field(description="language of the model, if the text is in another one")
    longest: int | None = Field(description="tokens of the longest source in the training data")


class TranslationRequest(InspectRequest):
    """Request for translations with their alignments."""

    n_best: int = Field(1, ge=1, le=1000)
    glossary: GlossaryTerms = ()
    source: Name | None = Field(None, description="other script of Chinese than that of the model, such as zt")
    target: Name | None = Field(None, description="other script of Chinese than that of the model, such as zt")


class AttentionRequest(InspectRequest):
    """Request for the attention maps of all heads."""

    target: list[Index] | None = Field(None, max_length=8192, description="token ids of the translation")


class MapRequest(AttentionRequest):
    """Request for the attention map of one head."""

    name: AttentionName
    head: Index | None = Field(None, description="default: the mean of all heads")
    quantity: Literal["weights", "scores"] = "weights"
    every_head: bool = Field(False, description="return the maps of all heads instead of one")


class ArithmeticRequest(AttentionRequest):
    """Request for the intermediate results of one query of one head."""

    name: AttentionName
    head: Index
    query: Index


class LensRequest(AttentionRequest):
    """Request for the states of all layers, read as tokens."""

    top: int = Field(5, ge=1, le=20, description="tokens at every position")


class WhyRequest(AttentionRequest):
    """Request for the explanation of a word of a translation."""

    word: Text = Field(min_length=1, max_length=200, description="the word, its position counted from 1, or END")
    contrast: Text | None = Field(None, max_length=200, description="why it is not this word")
    against: Text | None = Field(None, description="another sentence with as many tokens, for activation patching")


class SearchOptions(BaseModel):
    """Changed search settings; the others are those of the server."""

    model_config = ConfigDict(extra="forbid")

    beam: int | None = Field(None, ge=1, le=16)
    length_penalty: Literal["average", "wu", "none"] | None = None
    alpha: float | None = Field(None, ge=0, le=10)
    temperature: float | None = Field(None, ge=0.01, le=100, description="sample instead of using beam search")
    seed: int | None = Field(None, ge=0, le=2**31, description="seed for sampling")
    iterations: int | None = Field(None, ge=1, le=20, description="iterations of a non-autoregressive model")
    lengths: int | None = Field(None, ge=1, le=16, description="length candidates of a non-autoregressive model")


class BeamRequest(InspectRequest):
    """Request for the steps of a search."""

    search: SearchOptions = SearchOptions()


class ChangeRequest(InspectRequest):
    """Request for a translation by a modified model."""

    factors: dict[AttentionName, dict[Index, Annotated[float, Field(ge=-10, le=10)]]] = Field(
        default_factory=dict, description="factors of head outputs: {attention: {head: factor}}", max_length=1000
    )
    sharpness: float = Field(1.0, ge=0.01, le=10, description="factor of all attention scores")
    bias: dict[Index, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict,
        description="number added to the cross-attention scores of source tokens, by position from 0",
        max_length=1000,
    )
    search: SearchOptions = SearchOptions()


class PositionsRequest(StrictRequest):
    """Request for the position encodings of a model."""

    model: ModelName = None
    length: int = Field(64, ge=2, le=512, description="number of positions")
    compare: bool = Field(False, description="return one encoding of each kind instead of those of the model")


class PatchRequest(ImageRequest):
    """Form or query fields of a request to inspect an image."""

    patch: Index | None = Field(None, description="show the attention of this patch instead of the class token")


class TrainingMapRequest(MapRequest):
    """Request for the attention map of one head at a checkpoint of the training."""

    step: int = Field(ge=0, le=10**12, description="step of the checkpoint")


class TrainingResponse(BaseModel):
    """Part of the log of a training run, and its checkpoints."""

    entries: list[dict[str, Any]] = Field(description="lines of the log, see docs/monitoring.md")
    next: int = Field(description="position of the next part, for `after`")
    steps: list[int] = Field(description="steps of the checkpoints")
    has_model: bool = Field(description="whether the run has saved a model")


class ImageAttentionRequest(ImageRequest):
    """Form or query fields of a request for the attention of an image model."""

    patch: Index | None = Field(None, description="show the window of this patch; models without windows ignore it")


class ImageMapRequest(ImageAttentionRequest):
    """Form or query fields of a request for the attention map of one head of an image model."""

    name: AttentionName
    head: Index | None = Field(None, description="default: the mean of all heads")
    quantity: Literal["weights", "scores"] = "weights"
    every_head: bool = Field(False, description="return the maps of all heads instead of one")


class ImageArithmeticRequest(ImageAttentionRequest):
    """Form or query fields of a request for the intermediate results of one query of an image model."""

    name: AttentionName
    head: Index
    query: Index


class ImageChangeRequest(ImageRequest):
    """Form or query fields of a request for the classes of a modified image model."""

    factors: Json[dict[AttentionName, dict[Index, Annotated[float, Field(ge=-10, le=10)]]]] = Field(
        default_factory=dict, description="factors of head outputs as JSON: {attention: {head: factor}}"
    )
    sharpness: float = Field(1.0, ge=0.01, le=10, description="factor of all attention scores")


class ImageChangeResponse(BaseModel):
    """Classes and probabilities before and after the change, and the number of heads of each attention module."""

    original: list[ApiClass]
    changed: list[ApiClass]
    heads: dict[str, int]


class HypothesisView(BaseModel):
    """A translation with its tokens."""

    text: str
    score: float
    tokens: list[int]
    labels: list[str]
    pieces: list[bool] = Field(description="whether a label continues the word of the label before it")
    probabilities: list[float]


class BeamNode(BaseModel):
    """A hypothesis of a beam search; `parent` is the index of another node, or -1."""

    parent: int
    step: int
    token: str
    outcome: str = Field(description="kept, ended, or dropped with a reason")
    log_prob: float | None
    cumulative_log_prob: float | None
    score: float | None


class NATIteration(BaseModel):
    """Tokens after one iteration; `predicted` marks those that were predicted in this iteration."""

    tokens: list[str]
    probabilities: list[float]
    predicted: list[bool]


class NATCandidate(BaseModel):
    """A translation of a non-autoregressive model, and its iterations."""

    text: str
    score: float
    iterations: list[NATIteration]


class GraphPath(BaseModel):
    """A path through a graph of tokens; `vertices` are those after the first one."""

    search: Literal["greedy", "lookahead", "viterbi", "beam"]
    text: str
    score: float
    vertices: list[int]
    tokens: list[str] = Field(description="token at each vertex, then END")
    transitions: list[float] = Field(description="probability of the transition to each vertex")


class TokenGraphView(BaseModel):
    """The graph of a model with model.length=dag; the lists have one element for each vertex."""

    tokens: list[str] = Field(description="most probable token")
    probabilities: list[float]
    visits: list[float] = Field(description="probability that a path visits the vertex")
    transitions: list[tuple[int, int, float]] = Field(description="from, to, probability; at most four of each vertex")
    paths: list[GraphPath] = Field(description="one of each kind of search; first that of the settings")


class BeamResponse(BaseModel):
    """Steps of a search: the tree of a beam search, or the iterations or the graph of a non-autoregressive model."""

    text: str
    score: float
    settings: dict[str, str | int | float | bool | None]
    length: str | None = Field(description="how a non-autoregressive model determines the target length")
    tree: list[BeamNode]
    candidates: list[NATCandidate] = Field(description="best first")
    graph: TokenGraphView | None = Field(description="the graph of a model with model.length=dag")


class WordScores(BaseModel):
    """Words with their contributions to the score, and the effect of replacing each of them."""

    labels: list[str]
    scores: list[float]
    occlusion: list[float]


class AttributionView(BaseModel):
    """Contributions of source and prefix to the score of a word; they sum to `score` − `baseline`."""

    word: str
    contrast: str | None
    start: int = Field(description="index of the first token of the word")
    source: WordScores
    prefix: WordScores
    score: float = Field(description="log-probability of the word, or its difference from that of the contrast")
    baseline: float = Field(description="the same without the words of source and prefix")
    error: float = Field(description="completeness error relative to the change of the score")
    points: int = Field(description="number of gradients")


class LayerReadoutView(BaseModel):
    """The most probable tokens at every position after every layer; the first layer is the embedding."""

    labels: list[str]
    tokens: list[list[list[str]]] = Field(description="[layer][position][rank]")
    probabilities: list[list[list[float]]]
    chosen: list[list[float]] = Field(description="probability of the token of the label")
    ranks: list[list[int]] = Field(description="rank of this token, from 1")


class LensResponse(BaseModel):
    """States of both stacks; those of the encoder only if source and target share a vocabulary."""

    decoder: LayerReadoutView
    encoder: LayerReadoutView | None


class PatchingView(BaseModel):
    """Share of the difference between two sentences that each state restores, [layer][position]."""

    word: str
    contrast: str
    source: list[str]
    other_source: list[str]
    prefix: list[str]
    score: float
    other_score: float
    encoder: list[list[float]]
    decoder: list[list[float]]


class WhyResponse(BaseModel):
    """Why a model chose a word of its translation."""

    attribution: AttributionView
    lens: LayerReadoutView
    heads: list[tuple[str, int, float]] = Field(description="attention, head, decrease of the score without it")
    patching: PatchingView | None


class ChangeResponse(BaseModel):
    """The translation, the source tokens with END, and the number of heads of each attention module."""

    translation: HypothesisView
    source: list[str]
    heads: dict[str, int]
