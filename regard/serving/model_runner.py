"""What a worker does with its model. Operations take items of one batch and plain options, and give plain results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch

from regard.data.images.decoding import MAX_PIXELS, decode_image
from regard.data.text.vocabularies import has_tokenizer
from regard.decoding.config import DecodingSettings, NATSettings, SearchSettings, parse_settings
from regard.errors import UserError
from regard.models.folder import check_input_type, find_model_folder, load_model, model_input_type
from regard.pipelines.classifier import Classifier, Ranked
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.loading import is_exported
from regard.pipelines.translator import Translator
from regard.runtime import choose_device
from regard.serving.messages import Alignment, LoadRequest, ModelInfo, Translation
from regard.serving.views.arithmetic import show_arithmetic
from regard.serving.views.attention import show_attention, show_map
from regard.serving.views.beam import show_beam
from regard.serving.views.change import show_change
from regard.serving.views.image import PATCHES, show_image, show_views
from regard.serving.views.positions import show_positions
from regard.serving.views.translation import show_translation

WARM_UP = ("Warm", "up: the first batches are slower than the rest, because much is set up when it is first needed.")
DIGITS = 6


class Engine(Protocol):
    """A loaded model and what can be asked of it."""

    about: ModelInfo

    def warm_up(self) -> None:
        """Does a little of everything, so that no user is the first."""

    def run(self, operation: str, items: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        """A result for every item.

        Raises:
            UserError: an item, or an option, is not what the model takes.
        """


def open_engine(order: LoadRequest) -> Engine:
    """Loads what is ordered.

    Raises:
        UserError: it cannot be loaded.
    """
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    if is_exported(order.run):
        return TranslationEngine(order)
    folder = find_model_folder(order.run)
    reads = model_input_type(folder)
    if reads == "text" and (has_tokenizer(folder) or order.engine == "ctranslate2"):
        return TranslationEngine(order)
    if order.engine not in (None, "regard") or order.precision is not None:
        raise UserError(f"{order.run} does not translate; --engine and --precision are for models that do")
    if reads == "text":
        return BareEngine(order)
    if reads == "images":
        return ClassificationEngine(order)
    check_input_type(folder, "pairs")
    return ViewsEngine(order)


class TranslationEngine:
    """A translator: its operations are "translate" and, with our own engine, "embed", both on sentences."""

    def __init__(self, order: LoadRequest) -> None:
        device = choose_device(order.device)
        self.translator = Translator.load(order.run, device=device, engine=order.engine, precision=order.precision)
        self.sees = self.translator.generator.has_attention
        search = parse_settings(self.translator.generator.settings_class, order.search, "search")
        self.settings = self.translator.fit(search)
        config = self.translator.model.config
        self.about = ModelInfo(
            name=order.name,
            kind=config.kind,
            operations=("translate", "embed") if self.sees else ("translate",),
            parameters=sum(parameter.numel() for parameter in self.translator.model.parameters()),
            device=str(device),
            languages=self.translator.languages,
            tokenizer=self.translator.vocabularies.source,
            longest=config.max_length - 1 if config.positions == "learned" else None,
            search=self.settings.resolved(),
            sections=("translate", "attention", "arithmetic", "beam", "change", "positions")
            if self.sees
            else ("translate",),
            engine="regard" if self.sees else "ctranslate2",
        )

    def warm_up(self) -> None:
        for items in (WARM_UP, WARM_UP * 8):
            self.translate(items, alignments=self.sees)
            if self.sees:
                self.embed(items)

    def run(self, operation: str, items: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        if operation == "translate":
            return self.translate(items, **options)
        if operation == "embed" and self.sees:
            return self.embed(items, **options)
        if operation in TRANSLATOR_SECTIONS and (self.sees or operation == "translation"):
            return [TRANSLATOR_SECTIONS[operation](self, item) for item in items]
        raise UserError(f"{self.about.name}: it can {' and '.join(self.about.operations)}, but not {operation}")

    def translate(self, sentences: Sequence[str], n_best: int = 1, alignments: bool = False) -> list[list[Translation]]:
        """The n best translations of every sentence, best first."""
        settings = widen(self.settings, n_best)
        found = self.translator.hypotheses(sentences, settings, alignments=alignments)
        pairs = zip(sentences, found, strict=True)
        return [[self._translation(one, sentence) for one in best] for sentence, best in pairs]

    def embed(self, sentences: Sequence[str], pool: Literal["mean", "none"] = "mean") -> list[Any]:
        """A vector of every sentence, or with "none" of each of its tokens."""
        vectors = self.translator.embed(sentences, pool)
        return [(vector.double() * 10**DIGITS).round().div(10**DIGITS).tolist() for vector in vectors]

    def best(self, n_best: int) -> DecodingSettings:
        """The server's own search with so many results, or as many as it has: a wider one might find another best."""
        return self.settings.changed(n_best=min(n_best, self.settings.candidates))

    def _translation(self, found: Hypothesis, sentence: str) -> Translation:
        alignment = None
        if found.alignment is not None:
            vocabularies = self.translator.vocabularies
            alignment = Alignment(
                weights=[[round(weight, 4) for weight in row] for row in found.alignment],
                source=found.source_pieces,
                target=found.pieces,
                source_spans=vocabularies.source.char_spans(vocabularies.source.encode(sentence)),
                target_spans=vocabularies.target.char_spans(found.tokens),
            )
        return Translation(found.text, round(found.score, DIGITS), len(found.tokens), alignment)


class ClassificationEngine:
    """A classifier: its operation is "classify", on the bytes of image files."""

    def __init__(self, order: LoadRequest) -> None:
        if order.search:
            raise UserError(f"{order.run} is an image model, which searches nothing; leave --search away")
        device = choose_device(order.device)
        self.classifier = Classifier.load(order.run, device)
        self.about = ModelInfo(
            name=order.name,
            kind=self.classifier.model.config.kind,
            operations=("classify",),
            parameters=sum(parameter.numel() for parameter in self.classifier.model.parameters()),
            device=str(device),
            classes=self.classifier.classes,
            sections=("image", "positions"),
        )

    def warm_up(self) -> None:
        blank = self.classifier.preprocessing.open(np.zeros((8, 8, 3), np.uint8))
        for number in (1, 16):
            self.classifier.predict([blank] * number)

    def run(self, operation: str, items: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        if operation == "classify":
            return list(self.classify(items, **options))
        if operation == "image":
            return [show_image(self.classifier, item) for item in items]
        if operation == "positions":
            return [show_positions(self.classifier.model, item) for item in items]
        raise UserError(f"{self.about.name}: it can classify, but not {operation}")

    def classify(self, images: Sequence[bytes], top: int = 5, pixels: int = MAX_PIXELS) -> list[Ranked]:
        """The likeliest classes of every image."""
        preprocessing = self.classifier.preprocessing
        opened = [
            preprocessing.open(
                decode_image(data, preprocessing.mode, max_pixels=pixels, min_side=preprocessing.resize.min_side)
            )
            for data in images
        ]
        ranked = self.classifier.rank(self.classifier.predict(opened), top)
        return [[(name, round(share, DIGITS)) for name, share in best] for best in ranked]


class ViewsEngine:
    """A model of two views, which can only be looked at."""

    def __init__(self, order: LoadRequest) -> None:
        if order.search:
            raise UserError(f"{order.run} is a model of two views, which searches nothing; leave --search away")
        device = choose_device(order.device)
        self.model, _ = load_model(find_model_folder(order.run), device)
        self.about = ModelInfo(
            name=order.name,
            kind=self.model.config.kind,
            operations=(),
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            device=str(device),
            sections=("views", "positions"),
        )

    def warm_up(self) -> None:
        size = PATCHES * self.model.config.patch
        blank = torch.zeros(1, self.model.config.channels, size, size, device=self.model.mask_token.device)
        with torch.no_grad():
            self.model.both(blank, blank)

    def run(self, operation: str, items: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        if operation == "views":
            return [show_views(self.model, item) for item in items]
        if operation == "positions":
            return [show_positions(self.model, item) for item in items]
        raise UserError(f"{self.about.name}: a model of two views can only be looked at; it cannot {operation}")


class BareEngine:
    """A translation model without a tokenizer: it cannot read, and says so; its positions can be looked at."""

    def __init__(self, order: LoadRequest) -> None:
        folder = find_model_folder(order.run)
        device = choose_device(order.device)
        self.model, _ = load_model(folder, device)
        self.about = ModelInfo(
            name=order.name,
            kind=self.model.config.kind,
            operations=(),
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            device=str(device),
            sections=("positions",),
            lacks="tokenizer",
        )

    def warm_up(self) -> None:
        pass

    def run(self, operation: str, items: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        if operation == "positions":
            return [show_positions(self.model, item) for item in items]
        raise UserError(f"{self.about.name}: its folder has no tokenizer, so that it cannot {operation}")


def choose_search(settings: DecodingSettings, asked: dict[str, Any]) -> DecodingSettings:
    """The settings with what was asked for; whoever samples searches no beam, and one result needs no judge."""
    given = {key: value for key, value in asked["search"].items() if value is not None}
    if isinstance(settings, SearchSettings) and "temperature" in given:
        given |= {"beam": None, "groups": 1, "diversity": 0.5, "coverage": 0.0}
    if isinstance(settings, NATSettings):
        results = given.get("lengths", settings.lengths) * given.get("beam", settings.beam)
        given |= {"n_best": min(settings.n_best, results)} | ({"rerank": None} if results == 1 else {})
    unknown = [key for key in given if key not in type(settings).model_fields]
    if unknown:
        raise UserError(f"{unknown[0]}: this model searches in another way")
    return settings.changed(**given)


TRANSLATOR_SECTIONS: dict[str, Callable[[TranslationEngine, dict[str, Any]], Any]] = {
    "translation": lambda own, asked: show_translation(own.translator, own.best(asked["n_best"]), asked),
    "attention": lambda own, asked: show_attention(own.translator, own.settings, asked),
    "map": lambda own, asked: show_map(own.translator, own.settings, asked),
    "arithmetic": lambda own, asked: show_arithmetic(own.translator, own.settings, asked),
    "beam": lambda own, asked: show_beam(own.translator, choose_search(own.settings, asked), asked),
    "change": lambda own, asked: show_change(own.translator, choose_search(own.settings, asked), asked),
    "positions": lambda own, asked: show_positions(own.translator.model, asked),
}
"""What the page may ask of a translator."""


def widen(settings: DecodingSettings, n_best: int) -> DecodingSettings:
    """The settings with so many hypotheses, or as many as such a model can give; no wider a search than that needs."""
    if isinstance(settings, SearchSettings):
        if settings.sampling or n_best <= settings.beam_width:
            return settings.changed(n_best=n_best)
        return settings.changed(n_best=n_best, beam=n_best)
    assert isinstance(settings, NATSettings)
    return settings.changed(n_best=min(n_best, settings.candidates))
