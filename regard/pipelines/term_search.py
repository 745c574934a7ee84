"""Translation with a glossary: terms in the source, required in the search, and reported for each hypothesis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from regard.data.text.annotation import encode_with_terms, is_annotated
from regard.data.text.glossary import TermMatch, count_needed, find_kept, find_target
from regard.data.text.inflection import is_word_character
from regard.data.text.tokenizer import Tokenizer
from regard.decoding.constraints import DecodingConstraints, DecodingRequest
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.pipelines.hypothesis import Hypothesis, TermUse
from regard.pipelines.sentence_translator import HypothesisDetails, SentenceTranslator, SourceRequest
from regard.pipelines.term_automaton import SentenceTerms, TargetAutomaton

TERM_BEAM = 16
"""Minimum beam width of a search with required terms, which shares the beam among partly placed terms."""

SCORE_MARGIN = 0.25
"""How much lower the score of another translation that keeps as many terms may be; see `_is_better`."""
MIN_DROP = 1.0
"""Minimum decrease of the log-probability of a word that stands for a term, if the term is deleted."""

NBestLists = list[list[Hypothesis]]


@dataclass(frozen=True)
class SentenceGlossary:
    """The terms of a sentence.

    Attributes:
        text: The sentence.
        matches: Its terms.
        tokenizer: Tokenizer of the target language, which may convert texts between scripts of Chinese. A conversion
            depends on the words around a character, so terms are compared in the script of the tokens.
    """

    text: str
    matches: tuple[TermMatch, ...]
    tokenizer: Tokenizer

    @cached_property
    def matches_as_tokens(self) -> list[TermMatch]:
        """The terms, with their translations in the script of the tokens."""
        targets = [self.tokenizer.to_token_script(match.term.target) for match in self.matches]
        return [
            replace(match, term=match.term._replace(target=target))
            for match, target in zip(self.matches, targets, strict=True)
        ]

    def report(self, hypothesis: Hypothesis) -> Hypothesis:
        """Return the hypothesis with the terms that its text has and lacks."""
        kept = find_kept(self.tokenizer.to_token_script(hypothesis.text), self.matches_as_tokens)
        uses = (
            TermUse(self.text[match.start : match.end], match.term.target, is_kept, match.start)
            for match, is_kept in zip(self.matches, kept, strict=True)
        )
        return replace(hypothesis, terms=tuple(uses))


def find_terms(requests: Sequence[SourceRequest], language: str, tokenizer: Tokenizer) -> dict[int, SentenceGlossary]:
    """Return the terms of the sentences that have some, by index. The tokenizer is that of the target language."""
    found = {}
    for i, request in enumerate(requests):
        text, glossary = request.sentence.text, request.glossary
        matches = glossary.find(text, language) if glossary is not None else []
        if matches:
            found[i] = SentenceGlossary(text, tuple(matches), tokenizer)
    return found


@dataclass(frozen=True)
class Replacement:
    """A word of a translation, characters `start` to `end`, that stands for a term whose translation is missing."""

    word: str
    start: int
    end: int
    target: str


class TermSearch:
    """Search with the terms of a glossary; no result depends on other sentences.

    All sentences are translated without constraints first, because most translations have the terms anyway and remain
    as they are. Models that were trained with annotated terms read them in the source. The sentences in which a
    hypothesis lacks a term are translated again, with a wider beam, in two ways: with the terms required anywhere, and
    the words that stood for them forbidden; and with the first translation up to those words, followed by the term, as
    a prefix. Each result in turn replaces the best one so far if `_is_better` prefers it.

    Args:
        translator: Searches, and scores given translations.
        settings: Settings of the search.
        details: What the hypotheses contain.

    Raises:
        UserError: The model or the settings do not support terms.
    """

    def __init__(self, translator: SentenceTranslator, settings: DecodingSettings, details: HypothesisDetails) -> None:
        translator.check_settings(settings, constraints_with_terms())
        self._translator, self._settings, self._details = translator, settings, details
        self._vocabularies = translator.vocabularies
        self._automata: dict[str, TargetAutomaton] = {}

    def __call__(self, requests: Sequence[SourceRequest]) -> NBestLists:
        """Return the hypotheses of every sentence; `request.decoding.terms` is still None."""
        glossaries = find_terms(requests, self._translator.languages[0], self._vocabularies.target)
        requests = self._annotate(requests, glossaries)
        found = self._first_translations(requests, glossaries)
        retries = self._retry_requests(requests, glossaries, found)
        retried = self._translator.search_sentences(
            [request for _, request in retries], _widen(self._settings), self._details
        )
        for (i, _), hypotheses in zip(retries, retried, strict=True):
            reported = [glossaries[i].report(hypothesis) for hypothesis in hypotheses]
            if _is_better(reported, found[i]):
                found[i] = reported
        return found

    def _annotate(
        self, requests: Sequence[SourceRequest], glossaries: Mapping[int, SentenceGlossary]
    ) -> list[SourceRequest]:
        """Annotate the terms in the sources if the model was trained with annotation and the result is not too long.

        Alignments belong to the tokens of the sentence, so with them nothing is annotated.
        """
        source, longest = self._vocabularies.source, self._translator.max_source_tokens
        annotated = list(requests)
        if is_annotated(source) and not self._details.alignments:
            for i, glossary in glossaries.items():
                tokens = encode_with_terms(source, glossary.text, glossary.matches_as_tokens)
                if longest is None or len(tokens) <= longest:
                    annotated[i] = replace(requests[i], decoding=replace(requests[i].decoding, source=tokens))
        return annotated

    def _first_translations(
        self, requests: Sequence[SourceRequest], glossaries: Mapping[int, SentenceGlossary]
    ) -> NBestLists:
        """Translate all sentences without required terms, and report the terms that the hypotheses have and lack."""
        found = self._translator.search_sentences(requests, self._settings, self._details)
        for i, glossary in glossaries.items():
            found[i] = [glossary.report(hypothesis) for hypothesis in found[i]]
        return found

    def _retry_requests(
        self, requests: Sequence[SourceRequest], glossaries: Mapping[int, SentenceGlossary], found: NBestLists
    ) -> list[tuple[int, SourceRequest]]:
        """Return the requests for the sentences in which a hypothesis lacks a term, with the sentence's index."""
        lacking = [i for i in sorted(glossaries) if not all(map(_is_complete, found[i]))]
        replacements = self._find_replacements([glossaries[i] for i in lacking], [found[i] for i in lacking])
        retries: list[tuple[int, SourceRequest]] = []
        for i, replaced in zip(lacking, replacements, strict=True):
            decodings = self._constrain(glossaries[i], requests[i].decoding, found[i][0], replaced)
            retries += [(i, replace(requests[i], decoding=decoding)) for decoding in decodings]
        return retries

    def _constrain(
        self, glossary: SentenceGlossary, request: DecodingRequest, best: Hypothesis, replaced: Sequence[Replacement]
    ) -> Iterator[DecodingRequest]:
        """Yield the requests that translate a sentence again because one of its hypotheses lacks a term.

        The first request requires all terms and forbids the replaced words. If there are replaced words, the second one
        also has a prefix: the best hypothesis up to the last of them, with the terms in their places. It is omitted if
        this prefix does not begin with that of the original request.
        """
        targets = self._limit_occurrences(glossary, best, replaced)
        yield replace(request, terms=SentenceTerms(targets))
        if replaced:
            text = best.text[: max(one.end for one in replaced)]
            for one in sorted(replaced, key=lambda one: -one.start):  # from the end, so that `start` stays valid
                text = text[: one.start] + one.target + text[one.end :]
            prefix = tuple(self._vocabularies.target.encode(text))
            if prefix[: len(request.prefix)] == request.prefix:
                yield replace(request, terms=SentenceTerms(targets), prefix=prefix)

    def _limit_occurrences(
        self, glossary: SentenceGlossary, best: Hypothesis, replaced: Sequence[Replacement]
    ) -> list[tuple[TargetAutomaton, int, float]]:
        """Return the minimum and maximum number of occurrences of each required term and of each replaced word.

        A replaced word may occur as often as it is not replaced, and as often as the missing terms contain it.
        """
        convert = self._vocabularies.target.to_token_script
        minimum = count_needed(glossary.matches_as_tokens)
        missing = [convert(use.target) for use in best.terms if not use.kept]
        text, maximum = convert(best.text), {}
        for word, num_replaced in Counter(convert(one.word) for one in replaced).items():
            num_unreplaced = len(find_target(text, word)) - num_replaced
            maximum[word] = num_unreplaced + sum(len(find_target(target, word)) for target in missing)
        limits = []
        for target in {**minimum, **maximum}:
            least = minimum.get(target, 0)
            limits.append((self._automaton(target), least, max(least, maximum.get(target, math.inf))))
        return limits

    def _automaton(self, target: str) -> TargetAutomaton:
        if target not in self._automata:
            self._automata[target] = TargetAutomaton(target, self._vocabularies.target)
        return self._automata[target]

    def _find_replacements(self, glossaries: Sequence[SentenceGlossary], found: NBestLists) -> list[list[Replacement]]:
        """Return the words of the best hypothesis of each sentence that stand for terms that it lacks.

        They are the words whose probability falls most if the term is deleted from the source.
        """
        rows: list[tuple[int, str, list[int]]] = []  # sentence, missing term, and source without it; first with it
        for i, (glossary, hypotheses) in enumerate(zip(glossaries, found, strict=True)):
            missing = [match for match, use in zip(glossary.matches, hypotheses[0].terms, strict=True) if not use.kept]
            if missing and hypotheses[0].tokens:
                text = glossary.text
                without = [text[: match.start] + text[match.end :] for match in missing]
                sources = self._vocabularies.source.encode_batch([text, *without])
                targets = ["", *(match.term.target for match in missing)]
                rows += [(i, target, source) for target, source in zip(targets, sources, strict=True)]
        scored = self._translator.score_tokens([source for *_, source in rows], [found[i][0].tokens for i, *_ in rows])
        replacements: list[list[Replacement]] = [[] for _ in glossaries]
        whole: list[float] = []
        for (i, target, _), hypothesis in zip(rows, scored, strict=True):
            values = hypothesis.token_log_probs
            if not target:
                whole = values
                continue
            tokens = found[i][0].tokens
            drops = [one - other for one, other in zip(whole, values, strict=True)][: len(tokens)]
            span = find_word(tokens, drops, self._vocabularies.target)
            replacements[i] += _place(found[i][0].text, span, target, replacements[i])
        return replacements


def constraints_with_terms() -> DecodingConstraints:
    """Return constraints with terms, which are rejected by a model or settings that do not support them."""
    return DecodingConstraints(terms=SentenceTerms())


def _place(text: str, span: tuple[int, int], target: str, others: Sequence[Replacement]) -> list[Replacement]:
    """Return the replacement of a word, or of its next occurrence if it is replaced already."""
    word = text[slice(*span)]
    starts = sorted(find_target(text, word), key=lambda start: abs(start - span[0])) if word else []
    for start in starts:
        end = start + len(word)
        if all(end <= other.start or start >= other.end for other in others):
            return [Replacement(word, start, end, target)]
    return []


def find_word(tokens: Sequence[int], drops: Sequence[float], tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the start and end of the word around the token with the largest value in `drops`.

    In scripts without spaces, return those of the token and of its neighbours with large values. Start and end are
    equal if no value is large enough, or if the token is no word.
    """
    best = max(range(len(tokens)), key=lambda t: drops[t])
    if drops[best] < MIN_DROP:
        return 0, 0
    first, last, least = best, best, max(MIN_DROP, drops[best] / 2)
    while first > 0 and drops[first - 1] >= least:
        first -= 1
    while last + 1 < len(tokens) and drops[last + 1] >= least:
        last += 1
    text, spans = tokenizer.decode(tokens), tokenizer.char_spans(tokens)
    start, end = spans[first][0], spans[last][1]
    while start < end and not text[start].isalnum():
        start += 1
    while end > start and not text[end - 1].isalnum():
        end -= 1
    if start < end:
        while start > 0 and is_word_character(text[start]) and is_word_character(text[start - 1]):
            start -= 1
        while end < len(text) and is_word_character(text[end - 1]) and is_word_character(text[end]):
            end += 1
    return start, end


def _widen(settings: DecodingSettings) -> DecodingSettings:
    if not isinstance(settings, SearchSettings) or settings.groups > 1 or settings.beam_width >= TERM_BEAM:
        return settings
    return settings.changed(beam=TERM_BEAM)


def _is_complete(hypothesis: Hypothesis) -> bool:
    return all(use.kept for use in hypothesis.terms)


def _is_better(new: Sequence[Hypothesis], old: Sequence[Hypothesis]) -> bool:
    """Return whether a new result replaces the best one so far.

    It does if its hypotheses keep more terms, or if they keep as many and the score of the first one is higher, or
    lower by less than `SCORE_MARGIN`. The results of both retries are compared in turn, that with a prefix last. So the
    first retry may replace the original translation, and the second one either of them, at a slightly lower score.
    """
    if not new or _count_kept(new) < _count_kept(old):
        return False
    return _count_kept(new) > _count_kept(old) or new[0].score > old[0].score - SCORE_MARGIN


def _count_kept(hypotheses: Sequence[Hypothesis]) -> float:
    """Return the mean number of terms that the hypotheses of a sentence keep."""
    return sum(use.kept for hypothesis in hypotheses for use in hypothesis.terms) / max(1, len(hypotheses))
