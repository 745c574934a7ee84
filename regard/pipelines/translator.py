"""`Translator`: translates text with a trained model.

Shapes: B sentences, S source tokens, T target tokens, V vocabulary, W width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import torch
from pydantic import Field, StrictInt
from torch import Tensor

from regard.attention.masks import pad_batch
from regard.attention.multi_head import disable_qkv_hooks
from regard.config import Settings
from regard.data.text.sentences import LengthWarnings, Sentence, SplitText, by_rank, length_warning, split_sentences
from regard.data.text.tokenizer import Tokenizer, Vocabularies
from regard.decoding.autoregressive import AutoregressiveGenerator
from regard.decoding.config import DecodingSettings, NATSettings, SearchSettings, parse_settings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.generator import BATCH_TOKENS, Generator, collect_cross_attention
from regard.decoding.nat import NATGenerator
from regard.decoding.stepper import NATHypothesis, TokenHypothesis
from regard.errors import UserError, prefix_errors
from regard.models.card import describe_model, save_pretrained
from regard.models.folder import (
    CONFIG,
    FOREIGN_CONFIG,
    build_on_meta,
    check_input_type,
    find_model_folder,
    load_model,
    model_class,
    read_config,
    save_model,
)
from regard.models.nat import NATransformer
from regard.models.transformer import Transformer
from regard.ops.linear import Precision, choose_precision, prepack, refresh_prepacked
from regard.pipelines.constraints import Constraints
from regard.pipelines.external import CTranslate2Generator, ExternalGenerator, check_engine_files
from regard.pipelines.hypothesis import Hypothesis, Iteration, TreeNode
from regard.pipelines.mbr import build_utility, minimise_risk

if TYPE_CHECKING:
    from regard.data.text.glossary import Glossary
    from regard.pipelines.memory import TranslationMemory
    from regard.pipelines.quality import QualityEstimator

WINDOW = 2048
"""Number of lines that are translated together and held in memory."""
MAX_TOKENS = 4096
"""Tokens of a sentence, if the model has no more positions; time grows with their square."""
MAX_CHARACTERS_PER_TOKEN = 64
"""A text with more characters is too long for any vocabulary, so it is not tokenised."""
LIKELY_END = -0.69
"""Log-probability of END, that of one half, from which a translation of the maximum length is complete."""
NO_CONSTRAINTS = DecodingRequest(())
Tokens = Sequence[int]
TranslationModel = Transformer | NATransformer
GlossaryLike: TypeAlias = "Glossary | Mapping[str, str] | Iterable[Sequence[str]] | str | Path"
"""What `regard.data.text.glossary.Glossary.of` accepts."""
T = TypeVar("T")


class Translator:
    """Translates text with a trained model or an ensemble.

    `translator(text)` returns the best translation of a string, or of every string in a list. `hypotheses` returns the
    n best translations with their scores; `stream` translates an unlimited number of lines; `score` scores given
    translations; `embed` returns the output vectors of the encoder.

    Texts are split into sentences, which are translated separately and joined with the original spacing, unless
    `split=False` is given. `score` and `embed` do not split.

    Attributes:
        memory: A `regard.pipelines.memory.TranslationMemory` whose translations are taken over, or None.

    Args:
        model: The model.
        vocabularies: Vocabularies of the model.
        languages: Codes of the source and the target language, such as "en" and "zh".
        others: Further models of an ensemble, with the same vocabularies.
        generator: Decodes instead of the search in regard, such as an export for CTranslate2.
        precision: Precision of the linear layers on a CPU; their weights are prepacked.
        longest_source: Number of tokens of the longest source in the training data, without END; None if unknown.
        glossary: Terms with their translations, for all calls that are given no other glossary: a `Glossary`, a
            mapping, pairs, or the path of a .tsv file.
    """

    def __init__(
        self,
        model: TranslationModel,
        vocabularies: Vocabularies,
        languages: tuple[str, str] = ("source", "target"),
        others: Sequence[TranslationModel] = (),
        generator: Generator | None = None,
        precision: Precision | None = None,
        longest_source: int | None = None,
        glossary: GlossaryLike | None = None,
    ) -> None:
        self.model, self.vocabularies, self.languages = model, vocabularies, languages
        self.longest_source = longest_source
        self.glossary = to_glossary(glossary)
        self.memory: TranslationMemory | None = None
        self.models = [model, *others]
        if precision is not None and model.target_embedding.weight.is_cpu:
            for member in self.models:
                prepack(member, precision)
        self.generator = _build_generator(self.models) if generator is None else generator
        self._rerankers: dict[Path, Translator] = {}
        self._folder: Path | None = None  # that the model was loaded from
        self._quality: QualityEstimator | None = None

    def __repr__(self) -> str:
        ensemble = f", ensemble of {len(self.models)}" if len(self.models) > 1 else ""
        source, target = self.languages
        return f"Translator({source} → {target}, {describe_model(self.model)}{ensemble}, {self.vocabularies})"

    @classmethod
    def load(
        cls,
        path: str | Path,
        *others: str | Path,
        device: str | torch.device = "cpu",
        precision: str | None = None,
        glossary: GlossaryLike | None = None,
    ) -> Translator:
        """Load a model folder or the best model of a training run; several of them form an ensemble.

        Args:
            path: The folder; may also be written by `regard export --to ctranslate2`.
            others: Further models of the ensemble.
            device: Device of the models.
            precision: "float32" by default. On CPU, "bfloat16" and "int8" use faster linear layers; on GPU, the whole
                model is converted to "bfloat16" or "float16".
            glossary: Terms with their translations, such as {"apple": "苹果"} or the path of a .tsv file.

        Raises:
            UserError: A file is missing or damaged, the files do not belong together, or an option does not apply.
        """
        path, device = Path(path), torch.device(device)
        terms = to_glossary(glossary)
        if is_exported(path):
            translator = cls._load_exported(path, len(others), device, precision)
            translator.glossary = terms
            return translator
        chosen = choose_precision(precision, device)
        folders = [find_model_folder(Path(folder)) for folder in (path, *others)]
        models, vocabularies, metadata = zip(*(_load_folder(folder, device) for folder in folders), strict=True)
        for other, own in zip(others, vocabularies[1:], strict=True):
            if own.fingerprint() != vocabularies[0].fingerprint():
                raise UserError(f"{other}: its tokenizer differs from that of {path}; an ensemble shares one tokenizer")
        if device.type != "cpu":  # on CPU, the precision applies to linear layers only
            for model in models:
                model.to(getattr(torch, chosen))
        translator = cls(models[0], vocabularies[0], metadata[0].languages, models[1:], precision=chosen)
        translator.longest_source = min((each.longest_source for each in metadata if each.longest_source), default=None)
        translator._folder, translator.glossary = folders[0], terms
        return translator

    @classmethod
    def _load_exported(cls, folder: Path, others: int, device: torch.device, precision: str | None) -> Translator:
        """Load a CTranslate2 export. Its model is on the meta device: the weights are in the engine."""
        if others:
            raise UserError("CTranslate2 has no ensembles; give training runs instead of an exported model")
        if precision is not None:
            raise UserError(f"{folder}: its precision was chosen when it was exported; omit precision")
        config = read_config(folder, FOREIGN_CONFIG)
        model, vocabularies = build_on_meta(config, folder / FOREIGN_CONFIG), Vocabularies.load(folder)
        _check_vocabulary_sizes(folder, model, vocabularies)
        metadata = _Metadata.select(config, folder / FOREIGN_CONFIG)
        check_engine_files(folder, metadata.files)
        generator = CTranslate2Generator(folder, vocabularies.tokens, device, metadata.longest)
        languages, longest_source = metadata.languages, metadata.longest_source
        return cls(model, vocabularies, languages, generator=generator, longest_source=longest_source)

    @classmethod
    def from_pretrained(cls, path: str | Path, **options: Any) -> Translator:
        """Load a model folder: `load` under the name that model hubs use. Nothing is downloaded."""
        return cls.load(path, **options)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a model folder with a model card (README.md) of the architecture, data and scores.

        Raises:
            UserError: The folder has other content, or the translator is an ensemble or a CTranslate2 export.
        """
        if len(self.models) > 1:
            raise UserError("an ensemble has several model folders; save each model separately")
        save_pretrained(Path(folder), self.save, self.model, self._folder)

    def save(self, folder: Path, metadata: Mapping[str, Any] | None = None) -> None:
        """Write config.json, model.safetensors and the tokenizer to an existing folder."""
        self.vocabularies.save(folder)
        save_model(folder, self.model, self.metadata() | dict(metadata or {}))

    def metadata(self) -> dict[str, Any]:
        """Return what the configuration file of a model folder states besides the architecture."""
        return {"languages": list(self.languages), "longest_source": self.longest_source}

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        split: bool = True,
        glossary: GlossaryLike | None = None,
        **settings: Any,
    ) -> Any:
        """Return the best translation of a string, or of every string in a list.

        Other keywords are those of `SearchSettings`, such as beam=4, or of `NATSettings` for a non-autoregressive
        model, such as iterations=4. With n_best, return a list of hypotheses with alignments instead of each string.
        Sentences longer than those of the training data are reported to the logger "regard".

        Args:
            text: A text, or a list of texts.
            split: Whether to split texts into sentences; otherwise a text is translated as one sequence.
            glossary: Terms with their translations, instead of those of the translator; {} for none.
        """
        parsed = parse_settings(self.generator.settings_class, settings, "translate")
        returns_hypotheses = "n_best" in settings
        texts = [text] if isinstance(text, str) else check_texts(text)
        alignments = returns_hypotheses and self.generator.has_attention
        found = self.hypotheses(texts, parsed, alignments=alignments, split=split, glossary=to_glossary(glossary))
        warnings = LengthWarnings()
        for number, hypotheses in enumerate(found, 1):
            warnings.add(number, hypotheses[0].warning)
        warnings.log()
        results = found if returns_hypotheses else [best[0].text for best in found]
        return results[0] if isinstance(text, str) else results

    def hypotheses(
        self,
        texts: Sequence[str],
        settings: DecodingSettings | None = None,
        constraints: Constraints | Sequence[Constraints] | None = None,
        alignments: bool = False,
        trees: bool = False,
        snapshots: bool = False,
        first: int = 1,
        split: bool = True,
        glossary: GlossaryLike | Sequence[GlossaryLike | None] | None = None,
        confidence: bool = False,
        flags: bool = False,
    ) -> list[list[Hypothesis]]:
        """Return the n best translations of every text, best first. A blank text is returned unchanged.

        The k-th translation of a text consists of the k-th translations of its sentences.

        Args:
            texts: Texts of one or several sentences.
            settings: Settings of the search, or of decoding with a non-autoregressive model.
            constraints: Required and forbidden text, for all texts or a list with one for each. The prefix applies to
                the first sentence of a text.
            alignments: Whether to return cross-attention weights.
            trees: Whether to return all nodes of the beam search.
            snapshots: Whether to return the target after each iteration of a non-autoregressive model.
            first: Number of the first text, for errors.
            split: Whether to split texts into sentences; otherwise a text is translated as one sequence.
            glossary: Terms whose translations the hypotheses shall contain, for all texts or a list with one for each;
                None for the glossary of the translator.
            confidence: Whether to return calibrated confidences of sentences and tokens.
            flags: Whether to return suspected faults, such as missing numbers.

        Raises:
            UserError: A text or a setting is invalid, a sequence is too long for the model, a phrase is required in a
                text of several sentences, the list of constraints has another length, or the confidence of the model
                is not calibrated.
        """
        texts = check_texts(texts, first)
        estimate = self.quality.select(confidence, flags) if confidence or flags else None
        of_texts = one_for_each(constraints, len(texts), "constraints")
        distinct = {one: _to_request(one, self.vocabularies.target) for one in (None, *of_texts)}
        resolved = [self.resolve_settings(settings, request, trees, snapshots) for request in distinct.values()]
        splits = [split_sentences(text, self.fits) if split else SplitText.of(text) for text in texts]
        sentences = [sentence for one in splits for sentence in one.sentences]
        positions = [(number, i) for number, one in enumerate(splits, first) for i in range(len(one.sentences))]
        for number, i in positions:
            if i and (constraint := of_texts[number - first]) and constraint.required:
                raise UserError(
                    f"sentence {number}: it has several sentences, and a required phrase belongs to one of them; give "
                    f"one sentence at a time, or do not split (--no-split, split=False)"
                )
        sources = self._encode([sentence.text for sentence in sentences], [number for number, _ in positions])
        of_sentences = [of_texts[number - first] for number, _ in positions]
        requests = [
            replace(distinct[one], source=source, prefix=() if i else distinct[one].prefix)
            for source, one, (_, i) in zip(sources, of_sentences, positions, strict=True)
        ]
        shared = glossary if isinstance(glossary, list | tuple) else to_glossary(cast("GlossaryLike | None", glossary))
        each = one_for_each(self.glossary if shared is None else shared, len(texts), "glossary")
        glossaries = [to_glossary(one) for one in each]
        of_these = [glossaries[number - first] for number, _ in positions]
        options = alignments, trees, snapshots
        search = self._search_with_terms if self.memory is None else self._search_with_memory
        found = iter(search(sentences, requests, resolved[0], of_sentences, of_these, options))
        blank = Hypothesis("", 0.0, tree=[] if trees else None, iterations=[] if snapshots else None)
        results = [
            _join_sentences(text, one, [next(found) for _ in one.sentences])
            if one.sentences
            else [replace(blank, text=text, source=text)]
            for text, one in zip(texts, splits, strict=True)
        ]
        return results if estimate is None else [[estimate(one) for one in n_best] for n_best in results]

    @property
    def quality(self) -> QualityEstimator:
        """Estimates confidences and flags. The calibration is read when it is first needed."""
        if self._quality is None:
            from regard.pipelines.quality import QualityEstimator

            self._quality = QualityEstimator(self._folder, self.languages[0])
        return self._quality

    def _search_with_memory(
        self,
        sentences: Sequence[Sentence],
        requests: Sequence[DecodingRequest],
        settings: DecodingSettings,
        constraints: Sequence[Constraints | None],
        glossaries: Sequence[Glossary | None],
        options: tuple[bool, bool, bool],
    ) -> list[list[Hypothesis]]:
        """Take the translations of the memory, and search for those of sentences that it does not have."""
        assert self.memory is not None
        entries = [tuple(self.memory.find(sentence.text)) for sentence in sentences]
        new = [i for i, found in enumerate(entries) if not found or found[0].similarity < 1]
        searched = self._search_with_terms(
            [sentences[i] for i in new],
            [requests[i] for i in new],
            settings,
            [constraints[i] for i in new],
            [glossaries[i] for i in new],
            options,
        )
        taken = {i: [Hypothesis(found[0].target, 0.0)] for i, found in enumerate(entries) if found}
        results = taken | dict(zip(new, searched, strict=True))
        return [
            [replace(hypothesis, source=sentences[i].text, memory=entries[i]) for hypothesis in results[i]]
            for i in range(len(sentences))
        ]

    def _search_with_terms(
        self,
        sentences: Sequence[Sentence],
        requests: Sequence[DecodingRequest],
        settings: DecodingSettings,
        constraints: Sequence[Constraints | None],
        glossaries: Sequence[Glossary | None],
        options: tuple[bool, bool, bool],
    ) -> list[list[Hypothesis]]:
        """Search, with the terms of a glossary for each sentence; `options` are the last arguments of `_search`."""
        if not any(glossaries):
            return self._search(sentences, requests, settings, constraints, *options)
        from regard.pipelines.glossary import TermSearch, request_with_terms

        def search(
            indices: Sequence[int], requests: Sequence[DecodingRequest], settings: DecodingSettings
        ) -> list[list[Hypothesis]]:
            chosen = [sentences[i] for i in indices], requests, settings, [constraints[i] for i in indices]
            return self._search(*chosen, *options)

        def score(sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[list[float]]:
            return [hypothesis.token_log_probs for hypothesis in self.score_tokens(sources, targets)]

        self.resolve_settings(settings, request_with_terms())
        # Alignments belong to the tokens of the sentence, so its terms are not annotated with them.
        longest = 0 if options[0] else self.max_source_tokens
        term_search = TermSearch(search, score, self.vocabularies, self.languages[0], longest)
        return term_search([sentence.text for sentence in sentences], glossaries, requests, settings)

    def _search(
        self,
        sentences: Sequence[Sentence],
        requests: Sequence[DecodingRequest],
        settings: DecodingSettings,
        constraints: Sequence[Constraints | None],
        alignments: bool,
        trees: bool,
        snapshots: bool,
    ) -> list[list[Hypothesis]]:
        """Generate, rerank and align the n best translations of each sentence; see `hypotheses` for the arguments."""
        sources = [request.source for request in requests]
        found: dict[int, list[TokenHypothesis]] = {}
        with self._inference() as hooks_disabled:
            for batch in batch_by_tokens(range(len(sources)), sources, self.generator.batch_tokens(settings)):
                generated = self._generate([requests[i] for i in batch], settings, trace=trees or snapshots)
                found.update(zip(batch, generated, strict=True))
            if isinstance(settings, NATSettings) and settings.rerank is not None:
                self._rerank(
                    [sentence.text for sentence in sentences], found, self.reranker(settings.rerank), settings.n_best
                )
            maps = self._align(sources, found) if alignments else {}
        if hooks_disabled and found:  # search calls no hooks: pass the results through the model once more
            with self._inference(hooks=True):
                self.generator.run_forward(sources, [found[i][0] for i in range(len(sources))])
        return [
            [
                self._to_hypothesis(
                    hypothesis, source, sentence, constraints[i], maps.get((i, n)), self._max_length(source, settings)
                )
                for n, hypothesis in enumerate(found[i])
            ]
            for i, (source, sentence) in enumerate(zip(sources, sentences, strict=True))
        ]

    def _generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool
    ) -> list[list[TokenHypothesis]]:
        if not isinstance(settings, SearchSettings) or settings.mbr is None:
            return self.generator.generate(requests, settings, trace=trace)
        utility = build_utility(settings.mbr, self.languages[1])
        return minimise_risk(self.generator, requests, settings, self.vocabularies.target.decode, utility)

    def stream(
        self,
        lines: Iterable[str],
        settings: DecodingSettings | None = None,
        first: int = 1,
        glossaries: Iterator[Glossary | None] | None = None,
        **options: Any,
    ) -> Iterator[list[Hypothesis]]:
        """Yield the n best translations of every line, in order, with at most `WINDOW` lines in memory.

        Further keywords are those of `hypotheses`. `glossaries` are those of the lines, in the same order; a line
        without one has that of the translator.
        """
        lines = iter(lines)
        while window := list(islice(lines, WINDOW)):
            if glossaries is not None:
                options["glossary"] = [self.glossary if one is None else one for one in islice(glossaries, len(window))]
            yield from self.hypotheses(window, settings, first=first, **options)
            first += len(window)

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
        encoded = self._encode(sources, range(1, len(sources) + 1))
        scored = self.score_tokens(encoded, self.vocabularies.target.encode_batch(targets), settings)
        return [replace(hypothesis, source=source) for hypothesis, source in zip(scored, sources, strict=True)]

    def score_tokens(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens], settings: DecodingSettings | None = None
    ) -> list[Hypothesis]:
        """Score given translations as token ids, without END."""
        settings = self.resolve_settings(settings)
        pairs = [[*source, *target] for source, target in zip(sources, targets, strict=True)]
        results: dict[int, Hypothesis] = {}
        with self._inference():
            for batch in batch_by_tokens(range(len(pairs)), pairs, self.generator.batch_tokens(settings)):
                scored = self.generator.score([sources[i] for i in batch], [targets[i] for i in batch], settings)
                for i, hypothesis in zip(batch, scored, strict=True):
                    results[i] = self._to_hypothesis(hypothesis, sources[i], Sentence("", ""))
        return [results[i] for i in range(len(pairs))]

    def log_probs(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> Tensor:
        """Return the log-probabilities of all tokens at every position of given translations, (B, T, V).

        Position t of an autoregressive model is conditioned on the first t target tokens.
        """
        return self.generator.log_probs(sources, targets)

    @torch.no_grad()
    def embed(self, texts: Sequence[str], pool: Literal["mean", "none"] = "mean", first: int = 1) -> list[Tensor]:
        """Return encoder outputs: one vector per text, (W,), or with "none" one per token, (S, W), without END.

        An empty text is represented by END. `first` is the number of the first text, for errors.
        """
        if pool not in ("mean", "none"):
            raise UserError(f"pool: {pool!r} must be mean (one vector per text) or none (one per token)")
        if self.model.target_embedding.weight.is_meta:
            raise UserError("CTranslate2 does not return encoder outputs; use the engine regard")
        texts = check_texts(texts, first)
        sources = self._encode(texts, range(first, first + len(texts)))
        config, device = self.model.config, self.model.target_embedding.weight.device
        vectors: list[Tensor] = [torch.empty(0)] * len(texts)
        refresh_prepacked(self.model)
        with self._inference():
            for batch in batch_by_tokens(range(len(texts)), sources, BATCH_TOKENS):
                tokens, layout = pad_batch([config.source_tokens(sources[i]) for i in batch], config.pad, device)
                for i, row in zip(batch, self.model.encode(tokens, layout), strict=True):
                    outputs = row[: max(1, len(sources[i]))]
                    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
                    vectors[i] = outputs.mean(0) if pool == "mean" else outputs.clone()
        return vectors

    def resolve_settings(
        self,
        settings: DecodingSettings | None = None,
        request: DecodingRequest = NO_CONSTRAINTS,
        trees: bool = False,
        snapshots: bool = False,
    ) -> DecodingSettings:
        """Return the settings with the defaults of this model filled in.

        Raises:
            UserError: The model does not support a setting, a constraint, trees or snapshots.
        """
        settings = settings or self.generator.settings_class()
        resolved = self.generator.resolve_settings(settings, request, trees, snapshots)
        if isinstance(resolved, SearchSettings) and resolved.mbr is not None:
            build_utility(resolved.mbr, self.languages[1])  # reports a missing tokeniser
        if isinstance(resolved, NATSettings) and resolved.rerank is not None:
            self.reranker(resolved.rerank)  # reports a missing model before anything is translated
        return resolved

    def count_parameters(self, settings: DecodingSettings | None = None) -> int:
        """Return the number of parameters of all models, including the reranker of the settings."""
        path = settings.rerank if isinstance(settings, NATSettings) else None
        models = [*self.models, *([] if path is None else self.reranker(path).models)]
        return sum(parameter.numel() for model in models for parameter in model.parameters())

    def reranker(self, path: Path) -> Translator:
        """Return the autoregressive model that reranks the results of this one. It is loaded once."""
        if path not in self._rerankers:
            check_reranker(path)
            self._rerankers[path] = Translator.load(path, device=self.model.target_embedding.weight.device)
        return self._rerankers[path]

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
        except UserError:  # reported with its number by `_encode`
            return True

    def _encode(self, texts: Sequence[str], numbers: Sequence[int]) -> list[list[int]]:
        """Tokenise texts; errors contain their numbers."""
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

    def _rerank(
        self, texts: Sequence[str], found: dict[int, list[TokenHypothesis]], reranker: Translator, n_best: int
    ) -> None:
        """Replace the scores with those of the reranker and sort by them; ties keep their order."""
        pairs = [(i, hypothesis) for i, best in found.items() for hypothesis in best]
        translations = [self.vocabularies.target.decode(hypothesis.tokens) for _, hypothesis in pairs]
        rescored = reranker.score([texts[i] for i, _ in pairs], translations)
        scored: dict[int, list[TokenHypothesis]] = {i: [] for i in found}
        for (i, hypothesis), reranked in zip(pairs, rescored, strict=True):
            scored[i].append(replace(hypothesis, score=reranked.score))
        for i, best in scored.items():
            found[i] = sorted(best, key=lambda hypothesis: -hypothesis.score)[:n_best]

    def _align(
        self, sources: Sequence[Tokens], found: Mapping[int, Sequence[TokenHypothesis]]
    ) -> dict[tuple[int, int], list[list[float]]]:
        """Return cross-attention weights averaged over layers, heads and models, by text and hypothesis."""
        pairs = [(i, n) for i, best in found.items() for n in range(len(best))]
        tokens = [[*sources[i], *found[i][n].tokens] for i, n in pairs]
        maps = {}
        for batch in batch_by_tokens(range(len(pairs)), tokens, BATCH_TOKENS):
            chosen = [pairs[index] for index in batch]
            with collect_cross_attention(self.models) as collected:
                self.generator.run_forward([sources[i] for i, _ in chosen], [found[i][n] for i, n in chosen])
            for weights, (i, n) in zip(torch.stack(collected).mean(0), chosen, strict=True):
                rows = self.generator.attention_rows(found[i][n])
                maps[i, n] = weights[rows, : self.model.config.source_length(sources[i])].tolist()
        return maps

    def _to_hypothesis(
        self,
        hypothesis: TokenHypothesis,
        source: Tokens,
        sentence: Sentence,
        constraints: Constraints | None = None,
        alignment: list[list[float]] | None = None,
        max_length: int | None = None,
    ) -> Hypothesis:
        """Add texts to a hypothesis of tokens, which the search limited to `max_length` tokens, END included."""
        target = self.vocabularies.target
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
            phrases=constraints.report(translation) if constraints else {},
            tree=tree,
            iterations=iterations,
            source=sentence.text,
            warning=length_warning(len(source), self.longest_source, sentence.divided),
            truncated=_is_truncated(hypothesis, max_length),
        )

    def _max_length(self, source: Tokens, settings: DecodingSettings) -> int | None:
        """Return the maximum number of tokens of a translation, END included; None if the search has no limit."""
        if not isinstance(settings, SearchSettings):
            return None
        limit, positions = settings.max_target_length(len(source)), self.model.config.max_positions
        return limit if positions is None else min(limit, positions)

    def _label(self, tokens: Tokens) -> list[str]:
        """Return the text of each token, with names for END and the CTC blank."""
        names = {self.model.config.eos: "END"}
        if isinstance(self.model, NATransformer) and self.model.config.length == "ctc":
            names[self.model.config.blank_token] = "·"
        subwords = self.vocabularies.target.tokens(tokens)
        return [names.get(token, subword) for token, subword in zip(tokens, subwords, strict=True)]

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


def _is_truncated(hypothesis: TokenHypothesis, max_length: int | None) -> bool:
    """Return whether a translation ends because of its length: the model preferred another token to END there."""
    if max_length is None or len(hypothesis.tokens) + 1 < max_length:
        return False
    ends = hypothesis.token_log_probs[len(hypothesis.tokens) :]
    return not ends or ends[0] < LIKELY_END


def is_exported(path: Path) -> bool:
    """Return whether a folder was written by `regard export --to ctranslate2`."""
    return (path / FOREIGN_CONFIG).is_file()


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


def batch_by_tokens(indices: Iterable[int], rows: Sequence[Tokens], tokens: int) -> Iterator[list[int]]:
    """Group rows of similar length, longest first, into batches of at most `tokens` padded tokens (END included)."""
    batch: list[int] = []
    for i in sorted(indices, key=lambda i: len(rows[i]), reverse=True):
        if batch and (len(batch) + 1) * (len(rows[batch[0]]) + 1) > tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def to_glossary(terms: GlossaryLike | None) -> Glossary | None:
    """Return terms in any form that `Glossary.of` accepts as a glossary."""
    if terms is None:
        return None
    from regard.data.text.glossary import Glossary

    return Glossary.of(terms)


def check_texts(texts: Iterable[str], first: int = 1) -> list[str]:
    """Return the texts as a list."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UserError(f"expected a list of texts, found {type(texts).__name__}")
    listed = list(texts)
    for number, text in enumerate(listed, first):
        if not isinstance(text, str):
            raise UserError(f"sentence {number}: expected a string, found {type(text).__name__}")
    return listed


def _build_generator(models: Sequence[TranslationModel]) -> Generator:
    autoregressive = [model for model in models if isinstance(model, Transformer)]
    if len(autoregressive) == len(models):
        return AutoregressiveGenerator(autoregressive)
    if len(models) > 1:
        raise UserError("an ensemble consists of autoregressive models; a non-autoregressive model translates alone")
    (model,) = models
    assert isinstance(model, NATransformer)
    return NATGenerator(model)


class _Metadata(Settings):
    """What the configuration file of a model folder states besides the architecture."""

    languages: tuple[str, str] = Field(("source", "target"), description="codes of the languages, such as en and zh")
    longest_source: StrictInt | None = Field(None, gt=0, description="tokens of the longest training source")
    longest: StrictInt | None = Field(None, description="of an export: maximum number of tokens of either side")
    files: dict[str, Any] = Field({}, description="of an export: sizes and checksums of the other files")

    @classmethod
    def select(cls, values: Mapping[str, Any], path: Path) -> _Metadata:
        """Parse the keys of a configuration file that belong to these settings."""
        return cls.parse({name: values[name] for name in cls.model_fields if name in values}, str(path))


def _load_folder(folder: Path, device: torch.device) -> tuple[TranslationModel, Vocabularies, _Metadata]:
    check_input_type(folder, "text")
    vocabularies = Vocabularies.load(folder)
    model, metadata = load_model(folder, device)
    _check_vocabulary_sizes(folder, model, vocabularies)
    return model, vocabularies, _Metadata.select(metadata, folder / CONFIG)


def _check_vocabulary_sizes(folder: Path, model: TranslationModel, vocabularies: Vocabularies) -> None:
    rows = (model.config.source_vocab, model.config.target_vocab)
    sizes = (len(vocabularies.source), len(vocabularies.target))
    if sizes != rows:
        raise UserError(
            f"{folder}: the tokenizer has {sizes[0]} and {sizes[1]} tokens, but the embeddings have {rows[0]} and "
            f"{rows[1]} rows; they were not saved together"
        )


def one_for_each(value: T | Sequence[T | None] | None, count: int, name: str) -> list[T | None]:
    """Return a value for each text: the same for all of them, or one from a list."""
    if not isinstance(value, list | tuple):
        return [cast(T | None, value)] * count
    if len(value) != count:
        raise UserError(f"{name}: the list has {len(value)}, but texts has {count}; give one for all, or one for each")
    return list(value)


def _to_request(constraints: Constraints | None, target: Tokenizer) -> DecodingRequest:
    """Return the constraints of a text as tokens, in a request without a source."""
    return DecodingRequest(()) if constraints is None else constraints.to_request(target)


def _join_sentences(text: str, split: SplitText, n_best_lists: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
    """Return the hypotheses of a text: the k-th one consists of the k-th hypothesis of each sentence."""
    joined = [(split.join([sentence.text for sentence in sentences]), sentences) for sentences in by_rank(n_best_lists)]
    if len(split.sentences) == 1:
        return [replace(hypothesis, text=result, source=text) for result, (hypothesis,) in joined]
    return [
        Hypothesis(
            text=result,
            score=sum(sentence.score for sentence in sentences),
            phrases={
                phrase: all(sentence.phrases[phrase] for sentence in sentences) for phrase in sentences[0].phrases
            },
            source=text,
            warning=next((sentence.warning for sentence in sentences if sentence.warning), None),
            parts=tuple(sentences),
            terms=tuple(use for sentence in sentences for use in sentence.terms),
        )
        for result, sentences in joined
    ]
