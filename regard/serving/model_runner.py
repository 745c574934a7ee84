"""Model runners: the operations that a worker runs on its model."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from regard.data.images.preprocessing import MAX_PIXELS, decode_image
from regard.data.text.tokenizer import has_tokenizer
from regard.decoding.settings import DecodingSettings, NATSettings, SearchSettings, parse_settings
from regard.errors import UserError
from regard.interop.ctranslate2 import load_translator
from regard.models.folder import (
    check_input_type,
    find_model_folder,
    is_exported,
    load_model,
    model_input_type,
)
from regard.models.swin import Swin
from regard.models.vit import ViT
from regard.ops.dispatch import choose_device
from regard.pipelines.classifier import Classifier, Ranking
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translator import Translator, to_glossary
from regard.serving.messages import UNFINISHED, Alignment, Alignments, LoadRequest, ModelInfo, Terms, Translation
from regard.serving.page_data import images, overview, text
from regard.serving.page_data.positions import view_positions
from regard.serving.training_log import has_log, has_model

WARM_UP_SENTENCES = ("Warm up.", "A longer sentence selects the kernels and allocates the memory of longer batches.")
TEXT_VIEWS = {
    "translation": text.view_translation,
    "attention": text.view_attention,
    "map": text.view_map,
    "look": text.view_look,
    "arithmetic": text.view_arithmetic,
    "beam": text.view_beam,
    "change": text.view_change,
    "overview": overview.view_overview,
    "why": text.view_why,
    "lens": text.view_lens,
}
IMAGE_VIEWS: dict[str, Callable[[Classifier, dict[str, Any]], Any]] = {
    "image_attention": images.view_image_attention,
    "image_map": images.view_image_map,
    "image_arithmetic": images.view_image_arithmetic,
    "image_change": images.view_image_change,
}
"""Views of classifiers whose attention the page can show."""
TEXT_SECTIONS = ("overview", "translate", "attention", "why", "arithmetic", "beam", "change", "positions")
DIGITS = 6


class ModelRunner:
    """A loaded model and its operations.

    Attributes:
        info: description of the model for the server.
        functions: the functions of the API's operations and of the page's views, by name. They take the items of a
            batch and options, and return one result per item.
    """

    info: ModelInfo
    functions: dict[str, Callable[..., list[Any]]]

    def warm_up(self) -> None:
        """Run the model once, so that the first requests are not slower than others."""

    def run(self, operation: str, items: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        """Run an operation or a view on a batch."""
        if operation not in self.functions:
            supported = ", ".join(self.info.operations) or "only the page"
            raise UserError(f"{self.info.name} does not support {operation}; it supports {supported}")
        return self.functions[operation](items, **options)


def load_runner(request: LoadRequest) -> ModelRunner:
    """Load a model."""
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    if is_exported(request.run):
        return TranslationRunner(request)
    if has_log(request.run) and not has_model(request.run):
        return TrainingRunner(request)
    folder = find_model_folder(request.run)
    input_type = model_input_type(folder)
    if input_type == "text" and (has_tokenizer(folder) or request.engine == "ctranslate2"):
        return TranslationRunner(request)
    if request.engine not in (None, "regard") or request.precision is not None:
        raise UserError(f"{request.run} is not a translation model; omit --engine and --precision")
    if input_type == "text":
        return PositionsRunner(request)
    if request.search:
        raise UserError(f"{request.run} is an image model and has no search settings; omit --search")
    if input_type == "images":
        return ClassificationRunner(request)
    check_input_type(folder, "pairs")
    return TwoViewRunner(request)


class TranslationRunner(ModelRunner):
    """A translator. Engines without attention weights support only translation."""

    def __init__(self, request: LoadRequest) -> None:
        device = choose_device(request.device)
        self.translator = translator = load_translator(
            request.run, device=device, engine=request.engine, precision=request.precision
        ).select(*(request.languages or (None, None)))
        self._selected: dict[tuple[str, str], Translator] = {}
        self.has_attention = translator.generator.has_attention
        self.functions = {"translate": self.translate, "translation": partial(self._view, text.view_translation)}
        if self.has_attention:
            self.functions |= {name: partial(self._view, view) for name, view in TEXT_VIEWS.items()}
            if has_log(request.run):
                self.functions["training_map"] = self._checkpoint_maps(request.run, str(device))
            self.functions |= {"embed": self.embed, "positions": _for_each(view_positions, translator.model)}
        search = parse_settings(translator.generator.settings_class, request.search, "search")
        self.settings = translator.resolve_settings(search)
        self.info = _describe(
            request,
            translator.model,
            device,
            operations=("translate", "embed") if self.has_attention else ("translate",),
            languages=translator.languages,
            tokenizer=translator.vocabularies.source,
            max_source_tokens=translator.max_source_tokens,
            longest_source=translator.longest_source,
            search=text.public_settings(self.settings),
            sections=TEXT_SECTIONS if self.has_attention else ("translate",),
            engine="regard" if self.has_attention else "ctranslate2",
        )

    def warm_up(self) -> None:
        for sentences in (WARM_UP_SENTENCES, WARM_UP_SENTENCES * 8):
            self.translate(sentences, alignments=self.has_attention)
            if self.has_attention:
                self.embed(sentences)

    def translate(
        self,
        sentences: Sequence[str],
        n_best: int = 1,
        alignments: Alignments = False,
        confidence: bool = False,
        glossary: Terms = (),
        languages: tuple[str, str] | None = None,
    ) -> list[list[Translation]]:
        """Return the n best translations of each sentence, best first.

        Args:
            sentences: Sentences.
            n_best: Number of translations.
            alignments: Whether to return alignments, and how.
            confidence: Whether to return confidences and flags.
            glossary: Terms and their translations.
            languages: Source and target language if texts are converted between scripts of Chinese.
        """
        settings, translator = widen_search(self.settings, n_best), self._select(languages)
        n_best_lists = translator.hypotheses(
            sentences,
            settings,
            alignments=bool(alignments),
            split=False,
            confidence=confidence and translator.quality.is_calibrated,
            flags=confidence,
            glossary=to_glossary(glossary or None),
        )
        return [
            [_to_message(translator, one, sentence, alignments == "json", bool(glossary)) for one in hypotheses]
            for sentence, hypotheses in zip(sentences, n_best_lists, strict=True)
        ]

    def _select(self, languages: tuple[str, str] | None) -> Translator:
        """Return the translator for a pair of scripts of Chinese, of which there are few; by default, the model's."""
        if languages is None:
            return self.translator
        if languages not in self._selected:
            self._selected[languages] = self.translator.select(*languages)
        return self._selected[languages]

    def embed(self, sentences: Sequence[str], pool: Literal["mean", "none"] = "mean") -> list[str]:
        """Return one vector per sentence (mean) or one per token (none), as JSON.

        They are encoded here and not in the server process, which would serve no other clients meanwhile.
        """
        vectors = self.translator.embed(sentences, pool)
        return [json.dumps((vector.double() * 10**DIGITS).round().div(10**DIGITS).tolist()) for vector in vectors]

    def _checkpoint_maps(self, run: Path, device: str) -> Callable[..., list[Any]]:
        """Return the operation that shows the attention of a checkpoint; it imports the training code when it runs."""
        found: list[Any] = []

        def run_views(requests: Sequence[dict[str, Any]]) -> list[Any]:
            from regard.serving.page_data.training import Checkpoints

            if not found:
                found.append(Checkpoints(run, device))
            return [found[0].view_map(self.settings, request) for request in requests]

        return run_views

    def _view(self, view: Callable[..., Any], requests: Sequence[dict[str, Any]]) -> list[Any]:
        """Return a view for each request, with the search settings and the scripts of Chinese of the request."""
        results = []
        for request in requests:
            settings, translator = self.settings, self._select(request.get("languages"))
            if "n_best" in request:  # not more than the beam: a wider beam could change the best result
                settings = settings.changed(n_best=min(request["n_best"], settings.candidates))
            if "search" in request:
                settings = change_search(settings, request["search"])
            results.append(view(translator, settings, request))
        return results


def _to_message(
    translator: Translator, hypothesis: Hypothesis, sentence: str, as_json: bool, has_glossary: bool
) -> Translation:
    """Convert a hypothesis to a message; with `as_json`, its alignment is encoded in the worker."""
    terms = [use.as_dict() for use in hypothesis.terms] if has_glossary else None
    alignment = None
    if hypothesis.alignment is not None:
        vocabularies = translator.vocabularies
        alignment = Alignment(
            weights=[[round(weight, 4) for weight in row] for row in hypothesis.alignment],
            source=hypothesis.source_subwords,
            target=hypothesis.subwords,
            source_spans=vocabularies.source.char_spans(vocabularies.source.encode(sentence)),
            target_spans=vocabularies.target.char_spans(hypothesis.tokens),
        )
    score, quality = round(hypothesis.score, DIGITS), text.quality_of(translator, hypothesis)
    if as_json and alignment is not None:
        encoded = json.dumps(vars(alignment), ensure_ascii=False)
        return Translation(hypothesis.text, score, alignment_json=encoded, terms=terms, quality=quality)
    return Translation(hypothesis.text, score, alignment, terms=terms, quality=quality)


class TrainingRunner(ModelRunner):
    """A training run that has not saved a model yet. The page shows its log."""

    def __init__(self, request: LoadRequest) -> None:
        self.functions = {}
        device = str(choose_device(request.device))
        self.info = ModelInfo(request.name, UNFINISHED, (), 0, device, sections=("training",))


class ClassificationRunner(ModelRunner):
    """An image classifier."""

    def __init__(self, request: LoadRequest) -> None:
        device = choose_device(request.device)
        self.classifier = Classifier.load(request.run, device)
        model = self.classifier.model
        self.functions = {
            "classify": self.classify,
            "image": _for_each(images.view_image, self.classifier),
            "image_overview": _for_each(overview.view_image_overview, self.classifier),
            "positions": _for_each(view_positions, model),
        }
        classes = self.classifier.classes
        sections: tuple[str, ...] = ("overview", "image", "positions")
        if isinstance(model, ViT | Swin):
            self.functions |= {name: _for_each(view, self.classifier) for name, view in IMAGE_VIEWS.items()}
            sections = ("overview", "image", *IMAGE_VIEWS, "positions")
        self.info = _describe(request, model, device, operations=("classify",), classes=classes, sections=sections)

    def warm_up(self) -> None:
        blank = self.classifier.preprocessing.open(np.zeros((8, 8, 3), np.uint8))
        for batch_size in (1, 16):
            self.classifier.predict([blank] * batch_size)

    def classify(self, files: Sequence[bytes], top: int = 5, pixels: int = MAX_PIXELS) -> list[Ranking]:
        """Return the most probable classes of each image."""
        preprocessing = self.classifier.preprocessing
        min_side = preprocessing.resize.min_side
        decoded = (decode_image(file, preprocessing.mode, max_pixels=pixels, min_side=min_side) for file in files)
        probabilities = self.classifier.predict([preprocessing.open(image) for image in decoded])
        return [
            [(name, round(probability, DIGITS)) for name, probability in ranking]
            for ranking in self.classifier.rank(probabilities, top)
        ]


class TwoViewRunner(ModelRunner):
    """A two-view model, which supports only the page."""

    def __init__(self, request: LoadRequest) -> None:
        device = choose_device(request.device)
        self.model, _ = load_model(find_model_folder(request.run), device)
        self.functions = {
            "image_overview": _for_each(overview.view_pair_overview, self.model),
            "views": _for_each(images.view_image_pair, self.model),
            "positions": _for_each(view_positions, self.model),
        }
        sections = ("overview", "views", "positions")
        self.info = _describe(request, self.model, device, operations=(), sections=sections)

    def warm_up(self) -> None:
        size = images.PATCHES_PER_SIDE * self.model.config.patch
        blank = torch.zeros(1, self.model.config.channels, size, size, device=self.model.mask_token.device)
        with torch.no_grad():
            self.model.decode_views(blank, blank)


class PositionsRunner(ModelRunner):
    """A text model without a tokenizer. The page shows only its positions."""

    def __init__(self, request: LoadRequest) -> None:
        device = choose_device(request.device)
        model, _ = load_model(find_model_folder(request.run), device)
        self.functions = {"positions": _for_each(view_positions, model)}
        self.info = _describe(request, model, device, operations=(), sections=("positions",), lacks="tokenizer")


def _describe(request: LoadRequest, model: Any, device: torch.device, **fields: Any) -> ModelInfo:
    if has_log(request.run):
        fields["sections"] = (*fields["sections"], "training")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return ModelInfo(name=request.name, kind=model.config.kind, parameters=parameters, device=str(device), **fields)


def _for_each(view: Callable[[Any, Any], Any], model: Any) -> Callable[..., list[Any]]:
    return lambda requests: [view(model, request) for request in requests]


def change_search(settings: DecodingSettings, options: dict[str, Any]) -> DecodingSettings:
    """Return the settings with the given options, and without settings that conflict with them."""
    changes = {key: value for key, value in options.items() if value is not None}
    if isinstance(settings, SearchSettings) and "temperature" in changes:  # sampling excludes beam search
        changes |= {"beam": None, "groups": 1, "diversity": 0.5, "coverage": 0.0}
    if isinstance(settings, NATSettings):
        candidates = changes.get("lengths", settings.lengths) * changes.get("beam", settings.beam)
        changes["n_best"] = min(settings.n_best, candidates)
        if candidates == 1:
            changes["rerank"] = None
        if changes.get("beam", 1) > 1:  # beam search takes no single path
            changes["path"] = "lookahead"
    for key in changes:
        if key not in type(settings).model_fields:
            raise UserError(f"{key}: this model does not have this search setting")
    return settings.changed(**changes)


def widen_search(settings: DecodingSettings, n_best: int) -> DecodingSettings:
    """Return the settings with `n_best` results, with a wider beam only if it is needed."""
    if isinstance(settings, SearchSettings):
        if settings.sampling or n_best <= settings.beam_width:
            return settings.changed(n_best=n_best)
        return settings.changed(n_best=n_best, beam=n_best)
    return settings.changed(n_best=min(n_best, settings.candidates))
