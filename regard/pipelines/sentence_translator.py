"""`SentenceTranslator`: translates sentences with a model or an ensemble, each as one sequence of tokens.

Shapes: B sentences, T target tokens, P output positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from regard.attention.multi_head import disable_qkv_hooks
from regard.data.text.languages import is_same_language, script_conversion
from regard.data.text.sentences import Sentence, length_warning
from regard.data.text.tokenizer import Vocabularies
from regard.decoding.autoregressive import AutoregressiveGenerator
from regard.decoding.constraints import DecodingConstraints, DecodingRequest
from regard.decoding.generator import BATCH_TOKENS, TokenGenerator, collect_cross_attention
from regard.decoding.nat import NATGenerator
from regard.decoding.settings import DecodingSettings, NATSettings, SearchSettings
from regard.decoding.stepper import NATHypothesis, TokenHypothesis
from regard.errors import UserError, prefix_errors
from regard.models.card import describe_model
from regard.models.folder import (
    CONFIG,
    TranslationMetadata,
    check_input_type,
    find_model_folder,
    is_exported,
    load_model,
    model_class,
    read_config,
)
from regard.models.nat import NATransformer
from regard.models.transformer import Transformer
from regard.ops.linear import Precision, choose_precision, prepack
from regard.pipelines.constraints import Constraints
from regard.pipelines.external import ExternalGenerator, load_export
from regard.pipelines.hypothesis import Hypothesis, Iteration, TreeNode
from regard.pipelines.mbr import build_utility, minimise_risk

if TYPE_CHECKING:
    from regard.data.text.glossary import Glossary

MAX_TOKENS = 4096
"""Tokens of a sentence, if the model has no more positions; time grows with their square."""
MAX_CHARACTERS_PER_TOKEN = 64
"""A text with more characters is too long for any vocabulary, so it is not tokenised."""
LIKELY_END = -0.69
"""Log-probability of END, that of one half, from which a translation of the maximum length is complete."""
NO_CONSTRAINTS = DecodingConstraints()
TranslationModel: TypeAlias = Transformer | NATransformer
Tokens = Sequence[int]
Alignment = list[list[float]]
ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class SourceRequest:
    """A sentence, and what is asked of its translation.

    Attributes:
        sentence: The sentence as text.
        decoding: Its tokens, and the constraints on its translation as tokens.
        constraints: The constraints as text.
        glossary: Terms whose translations the hypotheses shall contain.
    """

    sentence: Sentence
    decoding: DecodingRequest
    constraints: Constraints | None = None
    glossary: Glossary | None = None


@dataclass(frozen=True)
class HypothesisDetails:
    """What hypotheses contain on request; see the attributes of `Hypothesis`.

    Attributes:
        alignments: Cross-attention weights.
        trees: All nodes of the beam search.
        snapshots: The target after each iteration of a non-autoregressive model.
        confidence: Calibrated confidences of sentences and tokens.
        flags: Suspected faults, such as missing numbers.
    """

    alignments: bool = False
    trees: bool = False
    snapshots: bool = False
    confidence: bool = False
    flags: bool = False


class SentenceTranslator:
    """Translates sentences with a trained model or an ensemble. See `Translator`, a subclass, for the arguments."""

    def __init__(
        self,
        model: TranslationModel,
        vocabularies: Vocabularies,
        languages: tuple[str, str] = ("source", "target"),
        others: Sequence[TranslationModel] = (),
        generator: TokenGenerator | None = None,
        precision: Precision | None = None,
        longest_source: int | None = None,
        directions: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.model, self.languages, self.directions = model, languages, tuple(directions)
        self.vocabularies = vocabularies.with_language(languages[1]) if directions else vocabularies
        self._own_languages = languages
        self.longest_source = longest_source
        self.models = [model, *others]
        if precision is not None and model.target_embedding.weight.is_cpu:
            for member in self.models:
                prepack(member, precision)
        self.generator = _build_generator(self.models) if generator is None else generator
        self._rerankers: dict[Path, SentenceTranslator] = {}
        self._folder: Path | None = None  # that the model was loaded from

    def __repr__(self) -> str:
        ensemble = f", ensemble of {len(self.models)}" if len(self.models) > 1 else ""
        source, target = self.languages
        return (
            f"{type(self).__name__}({source} → {target}, {describe_model(self.model)}{ensemble}, {self.vocabularies})"
        )

    # Files

    @classmethod
    def load(
        cls,
        path: str | Path,
        *others: str | Path,
        device: str | torch.device = "cpu",
        precision: str | None = None,
    ) -> Self:
        """Load a model folder or the best model of a training run; see `Translator.load`."""
        paths, device = [Path(path), *map(Path, others)], torch.device(device)
        if is_exported(paths[0]):
            if others:
                raise UserError("CTranslate2 has no ensembles; give training runs instead of an exported model")
            if precision is not None:
                raise UserError(f"{path}: its precision was chosen when it was exported; omit precision")
            model, vocabularies, metadata, generator = load_export(paths[0], device)
            _check_vocabulary_sizes(paths[0], model, vocabularies)
            translator = cls(
                model, vocabularies, metadata.languages, generator=generator, directions=metadata.directions
            )
            translator.longest_source = metadata.longest_source
            return translator
        chosen = choose_precision(precision, device)
        folders = [find_model_folder(one) for one in paths]
        models, tokenizers, described = zip(*(_load_folder(folder, device) for folder in folders), strict=True)
        for other, own in zip(paths[1:], tokenizers[1:], strict=True):
            if own.fingerprint() != tokenizers[0].fingerprint():
                raise UserError(f"{other}: its tokenizer differs from that of {path}; an ensemble shares one tokenizer")
        if device.type != "cpu":  # on CPU, the precision applies to linear layers only
            for model in models:
                model.to(getattr(torch, chosen))
        languages, directions = described[0].languages, described[0].directions
        translator = cls(models[0], tokenizers[0], languages, models[1:], precision=chosen, directions=directions)
        translator.longest_source = min((one.longest_source for one in described if one.longest_source), default=None)
        translator._folder = folders[0]
        return translator

    # Directions

    def select(self, source: str | None, target: str | None) -> Self:
        """Return a translator with the same model and another direction.

        Text is converted if the direction has the other script of Chinese, with the package opencc, and so are
        glossaries and constraints.

        Args:
            source: Code of the source language; by default that of the first direction to the target.
            target: Code of the target language; by default that of the first direction from the source.

        Raises:
            UserError: The model does not have this direction.
        """
        pairs = self.directions or (self._own_languages,)
        candidates = [((source or own[0], target or own[1]), own) for own in pairs]
        fitting = [(codes, own) for codes, own in candidates if all(map(is_same_language, codes, own))]
        if not fitting:
            listed = ", ".join(" to ".join(pair) for pair in pairs)
            raise UserError(
                f"the model does not translate {source or 'any'} to {target or 'any'}; its directions are {listed}"
            )
        codes, own = min(fitting, key=lambda found: sum(map(bool, map(script_conversion, *found))))
        selected = copy(self)
        first, second = (a if script_conversion(a, b) else b for a, b in zip(codes, own, strict=True))
        selected.languages = first, second
        vocabularies = self.vocabularies.with_language(own[1]) if self.directions else self.vocabularies
        selected.vocabularies = vocabularies.with_scripts(codes, own)
        return selected

    # Settings

    def resolve_settings(
        self,
        settings: DecodingSettings | None = None,
        constraints: DecodingConstraints = NO_CONSTRAINTS,
        trees: bool = False,
        snapshots: bool = False,
    ) -> DecodingSettings:
        """Return the settings with the defaults of this model filled in.

        Raises:
            UserError: The model does not support a setting, a constraint, trees or snapshots.
        """
        settings = settings or self.generator.settings_class()
        resolved = self.generator.resolve_settings(settings, constraints, trees, snapshots)
        if isinstance(resolved, SearchSettings) and resolved.mbr is not None:
            build_utility(resolved.mbr, self.languages[1])  # reports a missing tokenizer
        if isinstance(resolved, NATSettings) and resolved.rerank is not None:
            self.reranker(resolved.rerank)  # reports a missing model before anything is translated
        return resolved

    def check_settings(
        self,
        settings: DecodingSettings | None = None,
        constraints: DecodingConstraints = NO_CONSTRAINTS,
        trees: bool = False,
        snapshots: bool = False,
    ) -> None:
        """Check that this model supports the settings, constraints, trees and snapshots; see `resolve_settings`."""
        self.resolve_settings(settings, constraints, trees, snapshots)

    def reranker(self, path: Path) -> SentenceTranslator:
        """Return the autoregressive model that reranks the results of this one. It is loaded once."""
        if path not in self._rerankers:
            check_reranker(path)
            device = self.model.target_embedding.weight.device
            self._rerankers[path] = SentenceTranslator.load(path, device=device)
        return self._rerankers[path]

    def count_parameters(self, settings: DecodingSettings | None = None) -> int:
        """Return the number of parameters of all models, including the reranker of the settings."""
        path = settings.rerank if isinstance(settings, NATSettings) else None
        models = [*self.models, *([] if path is None else self.reranker(path).models)]
        return sum(parameter.numel() for model in models for parameter in model.parameters())

    # Sources

    @property
    def max_source_tokens(self) -> int | None:
        """Maximum number of source tokens, without END; None if unlimited."""
        limits = [model.config.max_positions for model in self.models if model.config.max_positions is not None]
        if isinstance(self.generator, ExternalGenerator) and self.generator.longest is not None:
            limits.append(self.generator.longest)
        return min(limits) - 1 if limits else None

    def fits(self, sentence: str) -> bool:
        """Return whether a sentence is short enough for the model."""
        limit = self.max_source_tokens
        try:
            return limit is None or len(self.vocabularies.source.encode(sentence)) <= limit
        except UserError:  # reported with its number by `encode`
            return True

    def encode(self, texts: Sequence[str], numbers: Sequence[int]) -> list[list[int]]:
        """Return the source tokens of sentences; errors contain their numbers."""
        most = max(MAX_TOKENS, self.model.config.max_length)
        advice = f"but at most {most:,} tokens are processed at once; split it into sentences"
        for number, text in zip(numbers, texts, strict=True):
            if len(text) > MAX_CHARACTERS_PER_TOKEN * most:
                raise UserError(f"sentence {number} has {len(text):,} characters, {advice}")
        try:
            sources = self.vocabularies.source.encode_batch(texts)
        except UserError:
            for number, text in zip(numbers, texts, strict=True):
                with prefix_errors(f"sentence {number}"):
                    self.vocabularies.source.encode(text)
            raise
        limit = self.max_source_tokens
        for number, tokens in zip(numbers, sources, strict=True):
            if limit is None and len(tokens) > most:
                raise UserError(f"sentence {number} has {len(tokens):,} tokens, {advice}")
            if limit is not None and len(tokens) > limit:
                raise UserError(
                    f"sentence {number} has {len(tokens)} tokens, but this model's positions end at {limit}; split it, "
                    f"or use a model with sinusoidal or rotary positions"
                )
        return sources

    # Search

    def search_sentences(
        self, requests: Sequence[SourceRequest], settings: DecodingSettings, details: HypothesisDetails
    ) -> list[list[Hypothesis]]:
        """Return the n best translations of each sentence: generate, rerank and align them."""
        sources = [request.decoding.source for request in requests]
        with self._inference() as hooks_disabled:
            found = self._generate(requests, settings, trace=details.trees or details.snapshots)
            if isinstance(settings, NATSettings) and settings.rerank is not None:
                found = self._rerank(requests, found, self.reranker(settings.rerank), settings.n_best)
            alignments = self._align(sources, found) if details.alignments else None
        if hooks_disabled and found:  # search calls no hooks: pass the results through the model once more
            with self._inference(hooks=True):
                self.generator.run_forward(sources, [best[0] for best in found])
        return [
            [
                self._to_hypothesis(hypothesis, request, settings, alignments[i][n] if alignments else None)
                for n, hypothesis in enumerate(best)
            ]
            for i, (request, best) in enumerate(zip(requests, found, strict=True))
        ]

    def _generate(
        self, requests: Sequence[SourceRequest], settings: DecodingSettings, trace: bool
    ) -> list[list[TokenHypothesis]]:
        """Search in batches of similar length, or choose from samples by minimum Bayes risk."""

        def generate(batch: Sequence[int]) -> list[list[TokenHypothesis]]:
            chosen = [requests[i].decoding for i in batch]
            if not isinstance(settings, SearchSettings) or settings.mbr is None:
                return self.generator.generate(chosen, settings, trace=trace)
            utility = build_utility(settings.mbr, self.languages[1])
            return minimise_risk(self.generator, chosen, settings, self.vocabularies.target.decode, utility)

        sources = [request.decoding.source for request in requests]
        return map_batches(generate, sources, self.generator.batch_tokens(settings))

    def _rerank(
        self,
        requests: Sequence[SourceRequest],
        found: Sequence[Sequence[TokenHypothesis]],
        reranker: SentenceTranslator,
        n_best: int,
    ) -> list[list[TokenHypothesis]]:
        """Return the hypotheses with the best scores of the reranker; ties keep their order."""
        texts = [request.sentence.text for request, best in zip(requests, found, strict=True) for _ in best]
        translations = [self.vocabularies.target.decode(hypothesis.tokens) for best in found for hypothesis in best]
        scored = iter(reranker.score(texts, translations))
        rescored = [[replace(hypothesis, score=next(scored).score) for hypothesis in best] for best in found]
        return [sorted(best, key=lambda hypothesis: -hypothesis.score)[:n_best] for best in rescored]

    def _align(self, sources: Sequence[Tokens], found: Sequence[Sequence[TokenHypothesis]]) -> list[list[Alignment]]:
        """Return cross-attention weights of each hypothesis, averaged over layers, heads and models."""
        pairs = [(source, hypothesis) for source, best in zip(sources, found, strict=True) for hypothesis in best]

        def align(batch: Sequence[int]) -> Iterator[Alignment]:
            chosen = [pairs[i] for i in batch]
            with collect_cross_attention(self.models) as collected:
                self.generator.run_forward([source for source, _ in chosen], [hypothesis for _, hypothesis in chosen])
            for weights, (source, hypothesis) in zip(torch.stack(collected).mean(0), chosen, strict=True):
                rows = self.generator.attention_rows(hypothesis)
                yield weights[rows, : self.model.config.source_length(source)].tolist()

        tokens = [[*source, *hypothesis.tokens] for source, hypothesis in pairs]
        maps = iter(map_batches(align, tokens, BATCH_TOKENS))
        return [[next(maps) for _ in best] for best in found]

    def _to_hypothesis(
        self,
        hypothesis: TokenHypothesis,
        request: SourceRequest,
        settings: DecodingSettings | None = None,
        alignment: Alignment | None = None,
    ) -> Hypothesis:
        """Add texts to a hypothesis of tokens, which search with these settings found."""
        source, target = request.decoding.source, self.vocabularies.target
        translation = target.decode(hypothesis.tokens)
        tree: list[TreeNode] | None = None
        if hypothesis.tree is not None:
            tree = [TreeNode(node, *self._label([node.token])) for node in hypothesis.tree]
        iterations: list[Iteration] | None = None
        if isinstance(hypothesis, NATHypothesis) and hypothesis.iterations:
            iterations = [
                Iteration(self._label(each.tokens), each.token_log_probs, each.updated)
                for each in hypothesis.iterations
            ]
        return Hypothesis(
            text=translation,
            score=hypothesis.score,
            tokens=hypothesis.tokens,
            subwords=target.tokens(hypothesis.tokens),
            token_log_probs=hypothesis.token_log_probs,
            source_subwords=self.vocabularies.source.tokens(source),
            alignment=alignment,
            phrases=request.constraints.report(translation) if request.constraints else {},
            tree=tree,
            iterations=iterations,
            source=request.sentence.text,
            warning=length_warning(len(source), self.longest_source, request.sentence.divided),
            truncated=self._is_truncated(hypothesis, source, settings),
        )

    def _is_truncated(self, hypothesis: TokenHypothesis, source: Tokens, settings: DecodingSettings | None) -> bool:
        """Return whether a translation ends because of its length: the model preferred another token to END there."""
        if not isinstance(settings, SearchSettings):
            return False
        limit, positions = settings.max_target_length(len(source)), self.model.config.max_positions
        if len(hypothesis.tokens) + 1 < (limit if positions is None else min(limit, positions)):
            return False
        ends = hypothesis.token_log_probs[len(hypothesis.tokens) :]
        return not ends or ends[0] < LIKELY_END

    def _label(self, tokens: Tokens) -> list[str]:
        """Return the text of each token, with names for END and the CTC blank."""
        names = {self.model.config.eos: "END"}
        if isinstance(self.model, NATransformer) and self.model.config.length == "ctc":
            names[self.model.config.blank_token] = "·"
        subwords = self.vocabularies.target.tokens(tokens)
        return [names.get(token, subword) for token, subword in zip(tokens, subwords, strict=True)]

    # Scores

    def score(
        self, sources: str | Sequence[str], targets: str | Sequence[str], settings: DecodingSettings | None = None
    ) -> Any:
        """Score given translations as search would score the same tokens.

        Return a hypothesis for two strings, or a list of hypotheses for two lists.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets], settings)[0]
        if isinstance(sources, str) or isinstance(targets, str):
            raise UserError("score takes a text and its translation, or a list of each")
        sources, targets = check_texts(sources), check_texts(targets)
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources cannot be scored with {len(targets)} translations")
        encoded = self.encode(sources, range(1, len(sources) + 1))
        scored = self.score_tokens(encoded, self.vocabularies.target.encode_batch(targets), settings)
        return [replace(hypothesis, source=source) for hypothesis, source in zip(scored, sources, strict=True)]

    def score_tokens(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens], settings: DecodingSettings | None = None
    ) -> list[Hypothesis]:
        """Score given translations as token ids, without END."""
        settings = self.resolve_settings(settings)

        def score(batch: Sequence[int]) -> list[TokenHypothesis]:
            return self.generator.score([sources[i] for i in batch], [targets[i] for i in batch], settings)

        pairs = [[*source, *target] for source, target in zip(sources, targets, strict=True)]
        with self._inference():
            scored = map_batches(score, pairs, self.generator.batch_tokens(settings))
        requests = (SourceRequest(Sentence("", ""), DecodingRequest(source)) for source in sources)
        return [self._to_hypothesis(hypothesis, request) for hypothesis, request in zip(scored, requests, strict=True)]

    def log_probs(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> Tensor:
        """Return the log-probabilities of all tokens at every position of given translations, (B, P, V).

        P is T + 1 for autoregressive models, where position t follows t target tokens. For non-autoregressive models,
        it is the number of positions of the NAT target.
        """
        return self.generator.log_probs(sources, targets)

    @contextmanager
    def _inference(self, hooks: bool = False) -> Iterator[bool]:
        """Switch to evaluation mode and disable hooks on attention unless `hooks`; yield whether any are disabled."""
        with ExitStack() as stack:
            for model in self.models:
                if model.training:  # eval() on every call would visit every layer
                    stack.callback(model.train)
                    model.eval()
            members = () if hooks else self.models
            disabled = [stack.enter_context(disable_qkv_hooks(model)) for model in members]
            yield any(disabled)


def _load_folder(folder: Path, device: torch.device) -> tuple[TranslationModel, Vocabularies, TranslationMetadata]:
    check_input_type(folder, "text")
    vocabularies = Vocabularies.load(folder)
    model, config = load_model(folder, device)
    _check_vocabulary_sizes(folder, model, vocabularies)
    return model, vocabularies, TranslationMetadata.select(config, folder / CONFIG)


def _check_vocabulary_sizes(folder: Path, model: TranslationModel, vocabularies: Vocabularies) -> None:
    rows = (model.config.source_vocab, model.config.target_vocab)
    sizes = (len(vocabularies.source), len(vocabularies.target))
    if sizes != rows:
        raise UserError(
            f"{folder}: the tokenizer has {sizes[0]} and {sizes[1]} tokens, but the embeddings have {rows[0]} and "
            f"{rows[1]} rows; they were not saved together"
        )


def check_reranker(path: Path) -> None:
    """Check that a folder or run contains an autoregressive model, without reading its weights."""
    try:
        folder = find_model_folder(path)
        check_input_type(folder, "text")
        model_type = model_class(folder, read_config(folder))
    except UserError as error:
        raise UserError(f"rerank: {error}") from None
    if not issubclass(model_type, Transformer):
        raise UserError(f"rerank: {path} is non-autoregressive; give an autoregressive model")


def _build_generator(models: Sequence[TranslationModel]) -> TokenGenerator:
    if all(isinstance(model, Transformer) for model in models):
        return AutoregressiveGenerator(cast(Sequence[Transformer], models))
    if len(models) > 1:
        raise UserError("an ensemble consists of autoregressive models; a non-autoregressive model translates alone")
    return NATGenerator(cast(NATransformer, models[0]))


def check_texts(texts: Iterable[str], first: int = 1) -> list[str]:
    """Return the texts as a list."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UserError(f"expected a list of texts, found {type(texts).__name__}")
    listed = list(texts)
    for number, text in enumerate(listed, first):
        if not isinstance(text, str):
            raise UserError(f"sentence {number}: expected a string, found {type(text).__name__}")
    return listed


def map_batches(
    function: Callable[[list[int]], Iterable[ItemT]], rows: Sequence[Sequence[int]], tokens: int
) -> list[ItemT]:
    """Call a function with the indices of each batch of rows; return its results in the order of the rows.

    Batches consist of rows of similar length, longest first, and at most `tokens` padded tokens (END included).
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(rows)), key=lambda i: len(rows[i]), reverse=True):
        if not batches or (len(batches[-1]) + 1) * (len(rows[batches[-1][0]]) + 1) > tokens:
            batches.append([])
        batches[-1].append(i)
    results: dict[int, ItemT] = {}
    for batch in batches:
        results.update(zip(batch, function(batch), strict=True))
    return [results[i] for i in range(len(rows))]
