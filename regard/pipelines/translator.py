"""`Translator`: model folders put to work. The only place where text meets a translation model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from regard.attention.multi_head import disable_qkv_hooks
from regard.data.text.vocabularies import Vocabularies
from regard.decoding.autoregressive import AutoregressiveGenerator
from regard.decoding.config import DecodingSettings, NATSettings, parse_settings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.generator import BATCH_TOKENS, Generator, collect_cross_attention
from regard.decoding.nat import NATGenerator, NATHypothesis, NATIteration
from regard.decoding.search import BeamNode, TokenHypothesis
from regard.decoding.stepper import pad_batch
from regard.errors import UserError
from regard.models.folder import find_model_folder, save_model
from regard.models.nat import NATransformer
from regard.models.pretrained import save_pretrained
from regard.models.transformer import EncoderDecoder, Transformer
from regard.ops.linear import PackedWeights
from regard.ops.quantization import Precision
from regard.pipelines.constraints import Constraints
from regard.pipelines.hypothesis import Hypothesis, Node, Round
from regard.pipelines.loading import Engine, Loaded, load_parts, save_for_engine
from regard.pipelines.reranking import check_reranker

WINDOW = 2048


class Translator:
    """Translates text with a trained model, or with several that vote.

    `translator(text)` gives the best translation of a string, or of every string in a list; `hypotheses` gives the n
    best as objects; `stream` takes lines without end; `score` judges given translations; `embed` gives the encoder's
    context-aware vectors.
    """

    def __init__(
        self,
        model: Transformer | NATransformer,
        vocabularies: Vocabularies,
        languages: tuple[str, str] = ("source", "target"),
        others: Sequence[Transformer | NATransformer] = (),
        generator: Generator | None = None,
        precision: Precision = "float32",
    ) -> None:
        self.model, self.vocabularies, self.languages = model, vocabularies, languages
        self._home: Path | None = None
        self.models = [model, *others]
        self._products = PackedWeights(precision)
        self.generator = build_generator(self.models, self._products) if generator is None else generator
        self._rerankers: dict[Path, Translator] = {}

    @classmethod
    def load(
        cls,
        path: str | Path,
        *others: str | Path,
        device: str | torch.device = "cpu",
        engine: Engine | str | None = None,
        precision: str | None = None,
    ) -> Translator:
        """Loads a model folder, or the best model of a training run; further ones make an ensemble with it.

        Args:
            path: the folder; also one that `regard export --to ctranslate2` has written.
            others: models that vote with it.
            device: where to compute.
            engine: "regard", or "ctranslate2", which is often faster on a CPU and cannot do all that regard can.
            precision: "float32" unless given. On a CPU "bfloat16" or "int8" are faster numbers in which vectors are
                multiplied with weights; on a GPU the whole model is in "bfloat16" or "float16". ctranslate2 has further
                ones.

        Raises:
            UserError: a file is missing or damaged, the files do not belong together, or the engine lacks something.
        """
        loaded = cls(
            *load_parts(Path(path), [Path(other) for other in others], torch.device(device), engine, precision)
        )
        loaded._home = None if loaded.model.target_embedding.weight.is_meta else find_model_folder(Path(path))
        return loaded

    @classmethod
    def from_pretrained(cls, path: str | Path, **options: Any) -> Translator:
        """`load`, under the name that it has with model hubs; nothing is fetched from anywhere.

        Raises:
            UserError: as `load` does.
        """
        return cls.load(path, **options)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a model folder with a card, README.md, which tells its architecture, its data and its scores.

        Raises:
            UserError: there is something else in the folder, several models vote, or another engine has the weights.
        """
        if len(self.models) > 1:
            raise UserError("models that vote are several folders; save each by itself")
        save_pretrained(Path(folder), self.save, self.model, self._home)

    def save_engine(self, folder: Path, quantization: str = "float32", about: dict[str, Any] | None = None) -> None:
        """Writes what the engine ctranslate2 loads into an existing folder, and beside it the tokenizer.

        Raises:
            UserError: CTranslate2 cannot express this model, or is not installed.
        """
        if len(self.models) > 1:
            raise UserError("CTranslate2 has no models that vote; give one")
        save_for_engine(Loaded(self.model, self.vocabularies, self.languages), folder, quantization, about or {})

    def save(self, folder: Path, about: dict[str, Any] | None = None) -> None:
        """Writes config.json, model.safetensors and the tokenizer into an existing folder."""
        self.vocabularies.save(folder)
        save_model(folder, self.model, {"languages": list(self.languages)} | (about or {}))

    def __call__(self, text: str | Sequence[str], **search: Any) -> Any:
        """The best translation of a string, or of every string in a list.

        Keywords are those of `SearchSettings`, such as beam=4, or for a model that writes all tokens at once those of
        `NATSettings`, such as iterations=4. With n_best the answer is hypotheses with their scores and alignments,
        best first, in place of each string.
        """
        settings = parse_settings(self.generator.settings_class, search, "translate")
        several = "n_best" in search
        texts, seen = [text] if isinstance(text, str) else list_texts(text), several and self.generator.has_attention
        found = self.hypotheses(texts, settings, alignments=seen)
        answers = found if several else [best[0].text for best in found]
        return answers[0] if isinstance(text, str) else answers

    def fit(self, settings: DecodingSettings | None = None) -> DecodingSettings:
        """The settings as this model takes them, with what it chooses where they leave a choice.

        Raises:
            UserError: it cannot do what they ask for.
        """
        return self._prepare(settings, DecodingRequest(()), trees=False, snapshots=False)

    def _prepare(
        self, settings: DecodingSettings | None, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        """The settings as this model takes them; whoever judges its results is there before any of them is."""
        fitted = self.generator.resolve_settings(settings or self.generator.settings_class(), request, trees, snapshots)
        if isinstance(fitted, NATSettings) and fitted.rerank is not None:
            self.reranker(fitted.rerank)
        return fitted

    def count_parameters(self, settings: DecodingSettings | None = None) -> int:
        """How many numbers have been learned by all who take part: models that vote, and one that judges."""
        path = settings.rerank if isinstance(settings, NATSettings) else None
        models = [*self.models, *([] if path is None else self.reranker(path).models)]
        return sum(parameter.numel() for model in models for parameter in model.parameters())

    def reranker(self, path: Path) -> Translator:
        """The model that chooses among results of this one.

        Raises:
            UserError: there is none, or it cannot judge.
        """
        if path not in self._rerankers:
            check_reranker(path)
            self._rerankers[path] = Translator.load(path, device=self.model.target_embedding.weight.device)
        return self._rerankers[path]

    def stream(
        self, lines: Iterable[str], settings: DecodingSettings | None = None, first: int = 1, **wanted: Any
    ) -> Iterator[list[Hypothesis]]:
        """The n best translations of every line, in order, with no more than a window of lines in memory.

        Further keywords are those of `hypotheses`; `first` is the number of the first line, for errors.
        """
        lines = iter(lines)
        while window := list(islice(lines, WINDOW)):
            yield from self.hypotheses(window, settings, first=first, **wanted)
            first += len(window)

    def hypotheses(
        self,
        texts: Sequence[str],
        settings: DecodingSettings | None = None,
        constraints: Constraints | None = None,
        alignments: bool = False,
        trees: bool = False,
        snapshots: bool = False,
        first: int = 1,
    ) -> list[list[Hypothesis]]:
        """The n best translations of every text, best first; a blank text has itself as its only translation.

        Args:
            texts: sentences, or longer texts, each translated as one.
            settings: how to search, or for a model that writes all at once how to fill its canvas.
            constraints: what every translation must begin with, say, or not say.
            alignments: whether hypotheses carry what they looked at.
            trees: whether hypotheses carry the whole beam.
            snapshots: whether hypotheses carry the canvas after each round.
            first: the number of the first text, for errors.
        """
        constraints = constraints or Constraints()
        texts = list_texts(texts, first)
        encoded = self._encode(texts, first)
        request = constraints.as_request(self.vocabularies.target)
        settings = self._prepare(settings, request, trees, snapshots)
        found: dict[int, list[TokenHypothesis]] = {}
        nothing: dict[str, Any] = {"tree": [] if trees else None, "rounds": [] if snapshots else None}
        results: list[list[Hypothesis]] = [[Hypothesis(text, 0.0, **nothing)] for text in texts]
        filled = [i for i, text in enumerate(texts) if text.strip()]
        with self._evaluating() as observed:
            for batch in batches_by_tokens(filled, encoded, self.generator.batch_tokens(settings)):
                requests = [replace(request, source=encoded[i]) for i in batch]
                written = self.generator.generate(requests, settings, trees or snapshots)
                for i, best in zip(batch, written, strict=True):
                    found[i] = best
                    results[i] = [self._hypothesis(one_best, encoded[i], constraints) for one_best in best]
            if isinstance(settings, NATSettings) and settings.rerank is not None:
                self._rerank(texts, found, results, settings.rerank, settings.n_best)
            if alignments:
                self._align(encoded, found, results)
        if observed and filled:
            with self._in_evaluation_mode():
                self.generator.run_forward([encoded[i] for i in filled], [found[i][0] for i in filled])
        return results

    def read(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        """The log-probabilities of given translations, (B, T, V).

        Row t is what a model that writes token by token says after t target tokens, or what one that writes all at
        once says at place t.
        """
        return self.generator.log_probs(sources, targets)

    def score(
        self, sources: str | Sequence[str], targets: str | Sequence[str], settings: DecodingSettings | None = None
    ) -> Any:
        """Given translations as hypotheses: their scores are what search would have given to the same tokens.

        A string and its translation give one hypothesis; two lists give a list.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets], settings)[0]
        if isinstance(sources, str) or isinstance(targets, str):
            raise UserError("score takes a text and its translation, or a list of each")
        sources, targets = list_texts(sources), list_texts(targets)
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources cannot be scored with {len(targets)} translations")
        return self.score_tokens(self._encode(sources, 1), self.vocabularies.target.encode_batch(targets), settings)

    def score_tokens(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        settings: DecodingSettings | None = None,
    ) -> list[Hypothesis]:
        """`score` for tokens, both sides without END."""
        settings = self.fit(settings)
        results: list[Hypothesis | None] = [None] * len(sources)
        both = [[*source, *target] for source, target in zip(sources, targets, strict=True)]
        with self._evaluating():
            for batch in batches_by_tokens(range(len(both)), both, self.generator.batch_tokens(settings)):
                found = self.generator.score([sources[i] for i in batch], [targets[i] for i in batch], settings)
                for i, one in zip(batch, found, strict=True):
                    results[i] = self._hypothesis(one, sources[i])
        return [result for result in results if result is not None]

    @torch.no_grad()
    def embed(self, texts: Sequence[str], pool: Literal["mean", "none"] = "mean", first: int = 1) -> list[Tensor]:
        """The encoder's context-aware vectors: one a text, (W,), or with "none" one a token, (S, W), END left out.

        `first` is the number of the first text, for errors.
        """
        if pool not in ("mean", "none"):
            raise UserError(f"pool: {pool!r} is not mean, one vector a text, or none, one a token")
        if self.model.target_embedding.weight.is_meta:
            raise UserError("the engine ctranslate2 gives no vectors of tokens; use the engine regard")
        texts = list_texts(texts, first)
        encoded = self._encode(texts, first)
        vectors: list[Tensor] = [torch.empty(0)] * len(texts)
        config = self.model.config
        device = self.model.target_embedding.weight.device
        self._products.refresh()
        with self._evaluating(), self._products:
            for batch in batches_by_tokens(range(len(texts)), encoded, BATCH_TOKENS):
                rows, layout = pad_batch([[*encoded[i], config.eos] for i in batch], config.pad, device)
                memory = self.model.encode(rows, layout)
                for i, row in zip(batch, memory, strict=True):
                    tokens = row[: max(1, len(encoded[i]))]  # an empty text has only END to stand for it
                    tokens = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
                    vectors[i] = tokens.mean(0) if pool == "mean" else tokens.clone()
        return vectors

    def _hypothesis(
        self, found: TokenHypothesis, source: Sequence[int], constraints: Constraints | None = None
    ) -> Hypothesis:
        target = self.vocabularies.target
        text = target.decode(found.tokens)
        return Hypothesis(
            text=text,
            score=found.score,
            tokens=found.tokens,
            pieces=target.tokens(found.tokens),
            log_probabilities=found.token_log_probs,
            source_pieces=self.vocabularies.source.tokens(source),
            phrases=constraints.report(text) if constraints else {},
            tree=None if found.tree is None else self._tree(found.tree),
            rounds=[self._round(one) for one in found.iterations]
            if isinstance(found, NATHypothesis) and found.iterations
            else None,
        )

    def _round(self, seen: NATIteration) -> Round:
        names = {self.model.config.eos: "END"}
        if isinstance(self.model, NATransformer) and self.model.config.length == "ctc":
            names[self.model.config.blank_token] = "·"
        pieces = self.vocabularies.target.tokens(seen.tokens)
        shown = [names.get(token, piece) for token, piece in zip(seen.tokens, pieces, strict=True)]
        return Round(shown, seen.token_log_probs, seen.updated)

    def _tree(self, tree: Sequence[BeamNode]) -> list[Node]:
        pieces = self.vocabularies.target.tokens
        eos = self.model.config.eos
        return [Node(e, "END" if e.token == eos else pieces([e.token])[0]) for e in tree]

    def _align(
        self, encoded: list[list[int]], found: dict[int, list[TokenHypothesis]], results: list[list[Hypothesis]]
    ) -> None:
        """Reads every hypothesis once more to see what it looked at, on average over layers, heads and models."""
        pairs = [(i, n) for i in found for n in range(len(found[i]))]
        both = [[*encoded[i], *found[i][n].tokens] for i, n in pairs]
        for batch in batches_by_tokens(range(len(pairs)), both, BATCH_TOKENS):
            chosen = [pairs[place] for place in batch]
            with collect_cross_attention(self.models) as seen:
                self.generator.run_forward([encoded[i] for i, _ in chosen], [found[i][n] for i, n in chosen])
            maps = torch.stack(seen).mean(0)
            for row, (i, n) in zip(maps, chosen, strict=True):
                whole = row[self.generator.attention_rows(found[i][n]), : len(encoded[i]) + 1]
                results[i][n] = replace(results[i][n], alignment=whole.tolist())

    def _rerank(
        self,
        texts: Sequence[str],
        found: dict[int, list[TokenHypothesis]],
        results: list[list[Hypothesis]],
        path: Path,
        n_best: int,
    ) -> None:
        """Puts the hypotheses in the order, and gives them the scores, of another model."""
        reranker = self.reranker(path)
        pairs = [(i, n) for i in found for n in range(len(found[i]))]
        rescored = reranker.score([texts[i] for i, _ in pairs], [results[i][n].text for i, n in pairs])
        scores = {pair: hypothesis.score for pair, hypothesis in zip(pairs, rescored, strict=True)}
        for i in found:
            order = [n for _, n in sorted((-scores[i, n], n) for n in range(len(found[i])))][:n_best]
            results[i] = [replace(results[i][n], score=scores[i, n]) for n in order]
            found[i] = [found[i][n] for n in order]

    def _encode(self, texts: list[str], first: int) -> list[list[int]]:
        try:
            encoded = self.vocabularies.source.encode_batch(texts)
        except UserError:
            for number, text in enumerate(texts, first):
                try:
                    self.vocabularies.source.encode(text)
                except UserError as error:
                    raise UserError(f"sentence {number}: {error}") from None
            raise
        for number, tokens in enumerate(encoded, first):
            for model in self.models:
                _check_length(len(tokens), number, model)
        return encoded

    @contextmanager
    def _evaluating(self) -> Iterator[bool]:
        """All models in evaluation mode, and no observer at work; tells whether one would have been."""
        with ExitStack() as stack:
            stack.enter_context(self._in_evaluation_mode())
            watched = [stack.enter_context(disable_qkv_hooks(model)) for model in self.models]
            yield any(watched)

    @contextmanager
    def _in_evaluation_mode(self) -> Iterator[None]:
        training = [model for model in self.models if model.training]  # to ask is cheap, to tell every layer is not
        try:
            for model in training:
                model.eval()
            yield
        finally:
            for model in training:
                model.train()


def build_generator(models: Sequence[Transformer | NATransformer], products: PackedWeights) -> Generator:
    """The way in which these models write.

    Raises:
        UserError: several are to vote, and one of them writes all tokens at once.
    """
    stepwise = [model for model in models if isinstance(model, Transformer)]
    if len(stepwise) == len(models):
        return AutoregressiveGenerator(stepwise, products)
    if len(models) > 1:
        raise UserError("models vote token by token: a model that writes all at once can only translate alone")
    (model,) = models
    assert isinstance(model, NATransformer)
    return NATGenerator(model, products)


def batches_by_tokens(indices: Iterable[int], encoded: Sequence[Sequence[int]], tokens: int) -> Iterator[list[int]]:
    """Groups sentences of similar length, the longest first, into batches of at most so many padded tokens."""
    batch: list[int] = []
    for i in sorted(indices, key=lambda i: len(encoded[i]), reverse=True):
        if batch and (len(batch) + 1) * (len(encoded[batch[0]]) + 1) > tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def list_texts(texts: Iterable[str], first: int = 1) -> list[str]:
    """The texts, each a string.

    Raises:
        UserError: they are none, or one of them is not; says which.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UserError(f"give a list of texts, not {type(texts).__name__}")
    listed = list(texts)
    for number, text in enumerate(listed, first):
        if not isinstance(text, str):
            raise UserError(f"sentence {number}: a text is a string, not {type(text).__name__}")
    return listed


def _check_length(tokens: int, number: int, model: EncoderDecoder) -> None:
    config = model.config
    if config.positions == "learned" and tokens + 1 > config.max_length:
        raise UserError(
            f"sentence {number} has {tokens} tokens, but this model's learned positions end at "
            f"{config.max_length - 1}; split it, or train a model with sinusoidal or rotary positions"
        )
