"""`Translator`: translates texts of one or several sentences, with a translation memory and glossaries.

From a text to the matmuls of attention, each function calls the next one, in part through helpers; docs/design.md
describes them under "From a text to its translation" and "A decoding step":

    Translator.stream_items              pipelines/translator.py           windows of texts
    Translator.hypotheses                pipelines/translator.py           texts are split, translations joined
    SentenceTranslator.search_sentences  pipelines/sentence_translator.py  batches of sentences
    AutoregressiveGenerator.generate     decoding/autoregressive.py        or, on a GPU, CapturedSearch.search
    search_tokens                        decoding/autoregressive.py        beam search, greedy search or sampling
    BeamSearch.run                       decoding/beam.py                  appends a token in every step
    TransformerStepper.step              decoding/autoregressive.py        log-probabilities of the next tokens
    Transformer.step                     models/transformer.py             embedding, decoder blocks and logits
    DecoderBlock.forward                 layers.py                         or, on a CPU, FusedDecoderBlock
    Attention.forward                    attention/multi_head.py           queries, keys and values of each head
    KVCache.attend, Full.__call__        attention/kinds.py                keys and values of all tokens
    attend, _matmul (or another)         attention/core.py                 baddbmm, softmax and bmm

Shapes: S source tokens, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from regard.data.text.sentences import LengthWarnings, SplitText, by_rank, split_sentences
from regard.decoding.constraints import DecodingConstraints, DecodingRequest
from regard.decoding.generator import BATCH_TOKENS
from regard.decoding.settings import DecodingSettings, parse_settings
from regard.errors import UserError
from regard.masks import pad_batch
from regard.models.card import save_pretrained
from regard.models.folder import save_model
from regard.ops.linear import refresh_prepacked
from regard.pipelines.constraints import Constraints
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.sentence_translator import (
    NO_CONSTRAINTS,
    HypothesisDetails,
    SentenceTranslator,
    SourceRequest,
    check_texts,
    map_batches,
)

if TYPE_CHECKING:
    from regard.data.text.glossary import Glossary
    from regard.pipelines.quality import QualityEstimator
    from regard.pipelines.translation_memory import TranslationMemory

WINDOW = 2048
"""Number of lines that are translated together and held in memory."""
GlossaryLike: TypeAlias = "Glossary | Mapping[str, str] | Iterable[Sequence[str]] | str | Path"
"""What `regard.data.text.glossary.Glossary.of` accepts."""
ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class TextRequest:
    """A text of any number of sentences, and what is asked of its translation.

    Attributes:
        number: Number of the text, for errors.
        split: Its sentences.
        constraints: The constraints on its translation as text.
        token_constraints: The constraints as tokens.
        glossary: Terms whose translations the hypotheses shall contain.
    """

    number: int
    split: SplitText
    constraints: Constraints | None
    token_constraints: DecodingConstraints
    glossary: Glossary | None


class Translator(SentenceTranslator):
    """Translates text with a trained model or an ensemble.

    `translator(text)` returns the best translation of a string, or of every string in a list. `hypotheses` returns the
    n best translations with their scores; `stream` translates an unlimited number of lines; `score` scores given
    translations; `embed` returns the output vectors of the encoder.

    Texts are split into sentences, which are translated separately and joined with the original spacing, unless
    `split=False` is given. `score` and `embed` do not split.

    Attributes:
        glossary: Terms with their translations, for all calls that are given no other glossary; None for none.
        memory: A `regard.pipelines.translation_memory.TranslationMemory` whose translations are taken over, or None.

    Args:
        model: The model.
        vocabularies: Vocabularies of the model.
        languages: Codes of the source and the target language, such as "en" and "zh".
        others: Further models of an ensemble, with the same vocabularies.
        generator: Decodes instead of the search in regard, such as an export for CTranslate2.
        precision: Precision of the linear layers on a CPU; their weights are prepacked.
        longest_source: Number of tokens of the longest source in the training data, without END; None if unknown.
        directions: Source and target language of every direction, if the model has several; see `select`.
    """

    glossary: Glossary | None = None
    memory: TranslationMemory | None = None
    _quality: QualityEstimator | None = None  # loaded when it is first needed

    @classmethod
    def load(
        cls,
        path: str | Path,
        *others: str | Path,
        device: str | torch.device = "cpu",
        precision: str | None = None,
        glossary: GlossaryLike | None = None,
    ) -> Self:
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
        terms = to_glossary(glossary)  # an invalid glossary is reported before the models are loaded
        translator = super().load(path, *others, device=device, precision=precision)
        translator.glossary = terms
        return translator

    def select(self, source: str | None, target: str | None) -> Self:
        """Return a translator with the same model and another direction, or another script of Chinese."""
        selected = super().select(source, target)
        selected._quality = None
        return selected

    @classmethod
    def from_pretrained(cls, path: str | Path, **options: Any) -> Self:
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
        languages = self.directions[0] if self.directions else self._own_languages
        values: dict[str, Any] = {"languages": list(languages), "longest_source": self.longest_source}
        return values | ({"directions": list(map(list, self.directions))} if self.directions else {})

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
        *,
        glossary: GlossaryLike | None = None,
        glossaries: Sequence[GlossaryLike | None] | None = None,
        split: bool = True,
        first: int = 1,
        **details: bool,
    ) -> list[list[Hypothesis]]:
        """Return the n best translations of every text, best first. A blank text is returned unchanged.

        The k-th translation of a text consists of the k-th translations of its sentences.

        Args:
            texts: Texts of one or several sentences.
            settings: Settings of the search, or of decoding with a non-autoregressive model.
            constraints: Required and forbidden text, for all texts or a list with one for each. The prefix applies to
                the first sentence of a text.
            glossary: Terms whose translations the hypotheses shall contain, instead of those of the translator; {} for
                none.
            glossaries: A glossary for each text, instead of `glossary`; None in it for `glossary`.
            split: Whether to split texts into sentences; otherwise a text is translated as one sequence.
            first: Number of the first text, for errors.
            details: What the hypotheses contain besides text and score: `alignments`, `trees`, `snapshots`,
                `confidence` or `flags`, each set to True; see `HypothesisDetails`.

        Raises:
            UserError: A text or a setting is invalid, a sequence is too long for the model, a phrase is required in a
                text of several sentences, the list of constraints or glossaries has another length, or the confidence
                of the model is not calibrated.
        """
        texts = check_texts(texts, first)
        wanted = HypothesisDetails(**details)
        estimate = self.quality.select(wanted.confidence, wanted.flags) if wanted.confidence or wanted.flags else None
        splits = [split_sentences(text, self.fits) if split else SplitText.of(text) for text in texts]
        text_requests = self._parse(
            texts, splits, constraints, self._glossaries(len(texts), glossary, glossaries), first
        )
        resolved = self.resolve_settings(settings, NO_CONSTRAINTS, wanted.trees, wanted.snapshots)
        for token_constraints in dict.fromkeys(request.token_constraints for request in text_requests):
            self.check_settings(settings, token_constraints, wanted.trees, wanted.snapshots)
        sentences = self._search_with_glossary_and_memory(self._divide(text_requests), resolved, wanted)
        results = _join_texts(texts, splits, sentences, wanted)
        return results if estimate is None else [[estimate(one) for one in n_best] for n_best in results]

    def _parse(
        self,
        texts: Sequence[str],
        splits: Sequence[SplitText],
        constraints: Constraints | Sequence[Constraints] | None,
        glossaries: Sequence[Glossary | None],
        first: int,
    ) -> list[TextRequest]:
        """Return a request for each text. The number of the first one is `first`."""
        constraints_of = one_for_each(constraints, len(texts), "constraints")
        target = self.vocabularies.target
        as_tokens = {given: given.to_tokens(target) if given else NO_CONSTRAINTS for given in constraints_of}
        return [
            TextRequest(number, split, given, as_tokens[given], terms)
            for number, (split, given, terms) in enumerate(zip(splits, constraints_of, glossaries, strict=True), first)
        ]

    def _glossaries(
        self, count: int, glossary: GlossaryLike | None, glossaries: Sequence[GlossaryLike | None] | None
    ) -> list[Glossary | None]:
        """Return the glossary of each text: its own, else that of the call, else that of the translator."""
        default = self.glossary if glossary is None else to_glossary(glossary)
        if glossaries is None:
            return [default] * count
        _check_count(len(glossaries), count, "glossaries")
        return [default if terms is None else to_glossary(terms) for terms in glossaries]

    def _divide(self, text_requests: Sequence[TextRequest]) -> list[SourceRequest]:
        """Return the requests of the sentences of all texts, with the sources as tokens."""
        for text in text_requests:
            if text.token_constraints.required and len(text.split.sentences) > 1:
                raise UserError(
                    f"sentence {text.number}: it has several sentences, and a required phrase belongs to one of them; "
                    f"give one sentence at a time, or do not split (--no-split, split=False)"
                )
        pairs = [(text, sentence) for text in text_requests for sentence in text.split.sentences]
        sources = self.encode([sentence.text for _, sentence in pairs], [text.number for text, _ in pairs])
        requests = []
        for (text, sentence), source in zip(pairs, sources, strict=True):
            constraints = text.token_constraints
            prefix = constraints.prefix if sentence is text.split.sentences[0] else ()
            decoding = DecodingRequest(
                source, prefix=prefix, required=constraints.required, forbidden=constraints.forbidden
            )
            requests.append(SourceRequest(sentence, decoding, text.constraints, text.glossary))
        return requests

    def _search_with_glossary_and_memory(
        self, requests: Sequence[SourceRequest], settings: DecodingSettings, details: HypothesisDetails
    ) -> list[list[Hypothesis]]:
        """Search, with the glossaries and the memory if there are any."""
        search: Callable[[Sequence[SourceRequest]], list[list[Hypothesis]]]
        search = partial(self.search_sentences, settings=settings, details=details)
        if any(request.glossary for request in requests):
            from regard.pipelines.term_search import TermSearch

            search = TermSearch(self, settings, details)
        return search(requests) if self.memory is None else self.memory.take_over(requests, search)

    def stream(
        self,
        lines: Iterable[str],
        settings: DecodingSettings | None = None,
        first: int = 1,
        **options: Any,
    ) -> Iterator[list[Hypothesis]]:
        """Yield the n best translations of every line, in order, with at most `WINDOW` lines in memory.

        Further keywords are those of `hypotheses`.
        """
        for number, window in windows(lines, first):
            yield from self.hypotheses(window, settings, first=number, **options)

    def stream_items(
        self,
        items: Iterable[tuple[ItemT, str]],
        settings: DecodingSettings,
        constraints: Constraints | None = None,
        *,
        done: int = 0,
        on_progress: Callable[[int], object] | None = None,
        glossary_of: Callable[[ItemT], Glossary | None] | None = None,
        **options: bool,
    ) -> Iterator[tuple[int, ItemT, list[Hypothesis]]]:
        """Translate items in order, like `stream`, and yield the number of each, the item and its hypotheses.

        Args:
            items: Items, such as source lines, each with its text.
            settings: Settings of the search.
            constraints: Required and forbidden text.
            done: Number of items whose results exist already and are not yielded again. A window of which some items
                are done is translated again from its start: the last digits of a score depend on the batch, and so the
                results do not depend on interruptions.
            on_progress: Called with the number of new results after each window.
            glossary_of: Returns the glossary of an item, or None for that of the translator.
            options: Arguments of `hypotheses`, such as `split` and `alignments`.
        """
        items, window_start = _skip_windows(items, done)
        for first, window in windows(items, window_start + 1):
            glossaries = None if glossary_of is None else [glossary_of(item) for item, _ in window]
            texts = [text for _, text in window]
            results = self.hypotheses(
                texts, settings, constraints=constraints, first=first, glossary=None, glossaries=glossaries, **options
            )
            numbered = enumerate(zip(window, results, strict=True), first)
            new = [(number, item, hypotheses) for number, ((item, _), hypotheses) in numbered if number > done]
            yield from new
            if on_progress is not None:
                on_progress(len(new))
            del new, results  # to free memory before the next window is translated

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
        sources = self.encode(texts, range(first, first + len(texts)))
        config, device = self.model.config, self.model.target_embedding.weight.device

        def embed(batch: Sequence[int]) -> Iterator[Tensor]:
            tokens, layout = pad_batch([config.source_tokens(sources[i]) for i in batch], config.pad, device)
            for i, row in zip(batch, self.model.encode(tokens, layout), strict=True):
                outputs = row[: max(1, len(sources[i]))]
                outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
                yield outputs.mean(0) if pool == "mean" else outputs.clone()

        refresh_prepacked(self.model)
        with self._inference():
            return map_batches(embed, sources, BATCH_TOKENS)

    @property
    def quality(self) -> QualityEstimator:
        """Estimates confidences and flags. The calibration is read when it is first needed."""
        if self._quality is None:
            from regard.pipelines.quality import QualityEstimator

            self._quality = QualityEstimator(self._folder, self.languages[0])
        return self._quality


def windows(items: Iterable[ItemT], first: int = 1) -> Iterator[tuple[int, list[ItemT]]]:
    """Yield at most `WINDOW` items at a time, with the number of the first of them."""
    items = iter(items)
    while window := list(islice(items, WINDOW)):
        yield first, window
        first += len(window)


def _skip_windows(items: Iterable[ItemT], done: int) -> tuple[Iterator[ItemT], int]:
    """Return the items from the start of the window that contains the next item, and the number of items before."""
    items = iter(items)
    start = done - done % WINDOW
    skipped = sum(1 for _ in islice(items, start))
    window = list(islice(items, done - start))
    if skipped + len(window) < done:
        raise UserError(
            f"the output has the translations of {done} lines, but the input has only {skipped + len(window)}; "
            f"they do not belong together"
        )
    following = list(islice(items, 1))
    if not following:  # everything is translated already
        return iter(()), start
    return chain(window, following, items), start


def to_glossary(terms: GlossaryLike | None) -> Glossary | None:
    """Return terms in any form that `Glossary.of` accepts as a glossary."""
    if terms is None:
        return None
    from regard.data.text.glossary import Glossary

    return Glossary.of(terms)


def one_for_each(value: ItemT | Sequence[ItemT | None] | None, count: int, name: str) -> list[ItemT | None]:
    """Return a value for each text: the same for all of them, or one from a list."""
    if not isinstance(value, list | tuple):
        return [cast(ItemT | None, value)] * count
    _check_count(len(value), count, name)
    return list(value)


def _check_count(given: int, count: int, name: str) -> None:
    if given != count:
        raise UserError(f"{name}: the list has {given}, but texts has {count}; give one for all, or one for each")


def _join_texts(
    texts: Sequence[str],
    splits: Sequence[SplitText],
    sentences: Iterable[list[Hypothesis]],
    details: HypothesisDetails,
) -> list[list[Hypothesis]]:
    """Return the n best translations of each text from those of its sentences; a blank text remains unchanged."""
    remaining = iter(sentences)
    blank = Hypothesis("", 0.0, tree=[] if details.trees else None, iterations=[] if details.snapshots else None)
    results = []
    for text, split in zip(texts, splits, strict=True):
        n_best_lists = list(islice(remaining, len(split.sentences)))
        joined = (
            _join_sentences(text, split, n_best_lists) if n_best_lists else [replace(blank, text=text, source=text)]
        )
        results.append(joined)
    return results


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
