"""`Translator`: translates text with a trained model.

Shapes: B sentences, S source tokens, T target tokens, V vocabulary, W width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from regard.attention.masks import pad_batch
from regard.attention.multi_head import disable_qkv_hooks
from regard.data.text.vocabularies import Vocabularies
from regard.decoding.autoregressive import AutoregressiveGenerator
from regard.decoding.config import DecodingSettings, NATSettings, parse_settings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.generator import BATCH_TOKENS, Generator, collect_cross_attention
from regard.decoding.nat import NATGenerator, NATHypothesis
from regard.decoding.stepper import TokenHypothesis
from regard.errors import UserError
from regard.models.card import save_pretrained
from regard.models.folder import (
    CONFIG,
    FOREIGN_CONFIG,
    MODELS,
    build_on_meta,
    check_input_type,
    find_model_folder,
    load_model,
    model_kind,
    read_config,
    save_model,
)
from regard.models.nat import NATransformer
from regard.models.transformer import Transformer
from regard.ops.linear import Precision, choose_precision, prepack, refresh_prepacked
from regard.pipelines.constraints import Constraints
from regard.pipelines.external import CTranslate2Generator
from regard.pipelines.hypothesis import Hypothesis, Iteration, TreeNode

WINDOW = 2048
"""Number of lines that are translated together and held in memory."""
MAX_TOKENS = 4096
"""Tokens of a sentence, if the model has no more positions; time grows with their square."""
MAX_CHARACTERS_PER_TOKEN = 64
"""A text with more characters is too long for any vocabulary, so it is not tokenised."""
Tokens = Sequence[int]
TranslationModel = Transformer | NATransformer


class Translator:
    """Translates text with a trained model or an ensemble.

    `translator(text)` returns the best translation of a string, or of every string in a list. `hypotheses` returns the
    n best translations with their scores; `stream` translates an unlimited number of lines; `score` scores given
    translations; `embed` returns the output vectors of the encoder.
    """

    def __init__(
        self,
        model: TranslationModel,
        vocabularies: Vocabularies,
        languages: tuple[str, str] = ("source", "target"),
        others: Sequence[TranslationModel] = (),
        generator: Generator | None = None,
        precision: Precision | None = None,
    ) -> None:
        self.model, self.vocabularies, self.languages = model, vocabularies, languages
        self.models = [model, *others]
        if precision is not None and model.target_embedding.weight.is_cpu:
            for member in self.models:
                prepack(member, precision)
        self.generator = _build_generator(self.models) if generator is None else generator
        self._rerankers: dict[Path, Translator] = {}
        self._folder: Path | None = None

    @classmethod
    def load(
        cls, path: str | Path, *others: str | Path, device: str | torch.device = "cpu", precision: str | None = None
    ) -> Translator:
        """Load a model folder or the best model of a training run; several of them form an ensemble.

        Args:
            path: The folder; may also be written by `regard export --to ctranslate2`.
            others: Further models of the ensemble.
            device: Device of the models.
            precision: "float32" by default. On CPU, "bfloat16" and "int8" use faster linear layers; on GPU, the whole
                model is converted to "bfloat16" or "float16".

        Raises:
            UserError: A file is missing or damaged, the files do not belong together, or an option does not apply.
        """
        path, device = Path(path), torch.device(device)
        if is_exported(path):
            return cls._load_exported(path, len(others), device, precision)
        chosen = choose_precision(precision, device)
        folders = [find_model_folder(Path(folder)) for folder in (path, *others)]
        models, vocabularies, languages = zip(*(_load_folder(folder, device) for folder in folders), strict=True)
        for other, own in zip(others, vocabularies[1:], strict=True):
            if own.fingerprint() != vocabularies[0].fingerprint():
                raise UserError(f"{other}: its tokenizer differs from that of {path}; an ensemble shares one tokenizer")
        if device.type != "cpu":  # on CPU, the precision applies to linear layers only
            for model in models:
                model.to(getattr(torch, chosen))
        translator = cls(models[0], vocabularies[0], languages[0], models[1:], precision=chosen)
        translator._folder = folders[0]
        return translator

    @classmethod
    def _load_exported(cls, folder: Path, others: int, device: torch.device, precision: str | None) -> Translator:
        """Load a CTranslate2 export. Its model is on the meta device: the weights are in the engine."""
        if others:
            raise UserError("CTranslate2 has no ensembles; give training runs instead of an exported model")
        if precision is not None:
            raise UserError(f"{folder}: its precision was chosen when it was exported; omit precision")
        metadata = read_config(folder, FOREIGN_CONFIG)
        model, vocabularies = build_on_meta(metadata, folder / FOREIGN_CONFIG), Vocabularies.load(folder)
        _check_vocabulary_sizes(folder, model, vocabularies)
        longest = metadata.get("longest")
        if longest is not None and not isinstance(longest, int):
            raise UserError(f"{folder / FOREIGN_CONFIG}: longest must be a number of tokens, not {longest!r}")
        generator = CTranslate2Generator(folder, vocabularies.tokens, device, longest)
        return cls(model, vocabularies, _parse_languages(folder / FOREIGN_CONFIG, metadata), generator=generator)

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
        save_model(folder, self.model, {"languages": list(self.languages)} | dict(metadata or {}))

    def __call__(self, text: str | Sequence[str], **settings: Any) -> Any:
        """Return the best translation of a string, or of every string in a list.

        Keywords are those of `SearchSettings`, such as beam=4, or of `NATSettings` for a non-autoregressive model, such
        as iterations=4. With n_best, return a list of hypotheses with alignments instead of each string.
        """
        parsed = parse_settings(self.generator.settings_class, settings, "translate")
        returns_hypotheses = "n_best" in settings
        texts = [text] if isinstance(text, str) else check_texts(text)
        found = self.hypotheses(texts, parsed, alignments=returns_hypotheses and self.generator.has_attention)
        results = found if returns_hypotheses else [best[0].text for best in found]
        return results[0] if isinstance(text, str) else results

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
        """Return the n best translations of every text, best first. A blank text is returned unchanged.

        Args:
            texts: Sentences, or longer texts that are translated as one sequence.
            settings: Settings of the search, or of decoding with a non-autoregressive model.
            constraints: Required and forbidden text.
            alignments: Whether to return cross-attention weights.
            trees: Whether to return all nodes of the beam search.
            snapshots: Whether to return the target after each iteration of a non-autoregressive model.
            first: Number of the first text, for errors.
        """
        texts = check_texts(texts, first)
        sources = self._encode(texts, first)
        request = DecodingRequest(()) if constraints is None else constraints.to_request(self.vocabularies.target)
        settings = self._resolve(settings, request, trees, snapshots)
        found: dict[int, list[TokenHypothesis]] = {}
        nonblank = [i for i, text in enumerate(texts) if text.strip()]
        with self._inference() as has_hooks:
            for batch in batch_by_tokens(nonblank, sources, self.generator.batch_tokens(settings)):
                requests = [replace(request, source=sources[i]) for i in batch]
                generated = self.generator.generate(requests, settings, trace=trees or snapshots)
                found.update(zip(batch, generated, strict=True))
            if isinstance(settings, NATSettings) and settings.rerank is not None:
                self._rerank(texts, found, self.reranker(settings.rerank), settings.n_best)
            maps = self._align(sources, found) if alignments else {}
        if has_hooks and nonblank:  # search does not call the hooks: pass the results through the model once more
            with self._evaluation_mode():
                self.generator.run_forward([sources[i] for i in nonblank], [found[i][0] for i in nonblank])
        tree: list[TreeNode] | None = [] if trees else None
        iterations: list[Iteration] | None = [] if snapshots else None
        results = [[Hypothesis(text, 0.0, tree=tree, iterations=iterations)] for text in texts]  # for blank texts
        for i, best in found.items():
            results[i] = [
                self._to_hypothesis(hypothesis, sources[i], constraints, maps.get((i, n)))
                for n, hypothesis in enumerate(best)
            ]
        return results

    def stream(
        self, lines: Iterable[str], settings: DecodingSettings | None = None, first: int = 1, **options: Any
    ) -> Iterator[list[Hypothesis]]:
        """Yield the n best translations of every line, in order, with at most `WINDOW` lines in memory.

        Further keywords are those of `hypotheses`.
        """
        lines = iter(lines)
        while window := list(islice(lines, WINDOW)):
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
        return self.score_tokens(self._encode(sources, 1), self.vocabularies.target.encode_batch(targets), settings)

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
                    results[i] = self._to_hypothesis(hypothesis, sources[i])
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
        sources = self._encode(texts, first)
        config, device = self.model.config, self.model.target_embedding.weight.device
        vectors: list[Tensor] = [torch.empty(0)] * len(texts)
        refresh_prepacked(self.model)
        with self._inference():
            for batch in batch_by_tokens(range(len(texts)), sources, BATCH_TOKENS):
                tokens, layout = pad_batch([[*sources[i], config.eos] for i in batch], config.pad, device)
                for i, row in zip(batch, self.model.encode(tokens, layout), strict=True):
                    outputs = row[: max(1, len(sources[i]))]
                    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
                    vectors[i] = outputs.mean(0) if pool == "mean" else outputs.clone()
        return vectors

    def resolve_settings(self, settings: DecodingSettings | None = None) -> DecodingSettings:
        """Return the settings with the defaults of this model filled in.

        Raises:
            UserError: The model does not support a setting.
        """
        return self._resolve(settings, DecodingRequest(()), trees=False, snapshots=False)

    def count_parameters(self, settings: DecodingSettings | None = None) -> int:
        """Return the number of parameters of all models, including the reranker of the settings."""
        path = settings.rerank if isinstance(settings, NATSettings) else None
        models = [*self.models, *([] if path is None else self.reranker(path).models)]
        return sum(parameter.numel() for model in models for parameter in model.parameters())

    def reranker(self, path: Path) -> Translator:
        """Return the autoregressive model that reranks the results of this one. It is loaded once.

        Raises:
            UserError: There is no such model, or it is not autoregressive.
        """
        if path not in self._rerankers:
            check_reranker(path)
            self._rerankers[path] = Translator.load(path, device=self.model.target_embedding.weight.device)
        return self._rerankers[path]

    def _resolve(
        self, settings: DecodingSettings | None, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        settings = settings or self.generator.settings_class()
        resolved = self.generator.resolve_settings(settings, request, trees, snapshots)
        if isinstance(resolved, NATSettings) and resolved.rerank is not None:
            self.reranker(resolved.rerank)  # reports a missing model before anything is translated
        return resolved

    def _encode(self, texts: list[str], first: int) -> list[list[int]]:
        most = max(MAX_TOKENS, self.model.config.max_length)
        advice = f"but at most {most:,} tokens are processed at once; split it into sentences"
        for number, text in enumerate(texts, first):
            if len(text) > MAX_CHARACTERS_PER_TOKEN * most:
                raise UserError(f"sentence {number} has {len(text):,} characters, {advice}")
        try:
            sources = self.vocabularies.source.encode_batch(texts)
        except UserError:
            for number, text in enumerate(texts, first):
                try:
                    self.vocabularies.source.encode(text)
                except UserError as error:
                    raise UserError(f"sentence {number}: {error}") from None
            raise
        limits = self.max_positions
        for number, tokens in enumerate(sources, first):
            if not limits and len(tokens) > most:
                raise UserError(f"sentence {number} has {len(tokens):,} tokens, {advice}")
            if limits and len(tokens) + 1 > min(limits):
                positions = f"{self.model.config.positions} positions"
                raise UserError(
                    f"sentence {number} has {len(tokens)} tokens, but this model's {positions} end at "
                    f"{min(limits) - 1}; split it, or train a model with sinusoidal or rotary positions"
                )
        return sources

    @property
    def max_positions(self) -> list[int]:
        """Maximum numbers of tokens of the models that have one."""
        limits = (model.config.max_positions for model in self.models)
        return [limit for limit in limits if limit is not None]

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
                maps[i, n] = weights[rows, : len(sources[i]) + 1].tolist()
        return maps

    def _to_hypothesis(
        self,
        hypothesis: TokenHypothesis,
        source: Tokens,
        constraints: Constraints | None = None,
        alignment: list[list[float]] | None = None,
    ) -> Hypothesis:
        """Add texts to a hypothesis of tokens."""
        target = self.vocabularies.target
        text = target.decode(hypothesis.tokens)
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
            text=text,
            score=hypothesis.score,
            tokens=hypothesis.tokens,
            subwords=target.tokens(hypothesis.tokens),
            token_log_probs=hypothesis.token_log_probs,
            source_subwords=self.vocabularies.source.tokens(source),
            alignment=alignment,
            phrases=constraints.report(text) if constraints else {},
            tree=tree,
            iterations=iterations,
        )

    def _label(self, tokens: Tokens) -> list[str]:
        """Return the text of each token, with names for END and the CTC blank."""
        names = {self.model.config.eos: "END"}
        if isinstance(self.model, NATransformer) and self.model.config.length == "ctc":
            names[self.model.config.blank_token] = "·"
        subwords = self.vocabularies.target.tokens(tokens)
        return [names.get(token, subword) for token, subword in zip(tokens, subwords, strict=True)]

    @contextmanager
    def _inference(self) -> Iterator[bool]:
        """Switch to evaluation mode and disable hooks on attention; yield whether there are any."""
        with ExitStack() as stack:
            stack.enter_context(self._evaluation_mode())
            hooked = [stack.enter_context(disable_qkv_hooks(model)) for model in self.models]
            yield any(hooked)

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        training = [model for model in self.models if model.training]  # eval() on every call would visit every layer
        try:
            for model in training:
                model.eval()
            yield
        finally:
            for model in training:
                model.train()


def is_exported(path: Path) -> bool:
    """Return whether a folder was written by `regard export --to ctranslate2`."""
    return (path / FOREIGN_CONFIG).is_file()


def check_reranker(path: Path) -> None:
    """Check that a folder or run contains an autoregressive model, without reading its weights.

    Raises:
        UserError: There is no such folder, or its model is of another kind.
    """
    try:
        folder = find_model_folder(path)
        check_input_type(folder, "text")
        kind = model_kind(folder, read_config(folder))
    except UserError as error:
        raise UserError(f"rerank: {error}") from None
    if not issubclass(MODELS[kind], Transformer):
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


def check_texts(texts: Iterable[str], first: int = 1) -> list[str]:
    """Return the texts as a list.

    Raises:
        UserError: `texts` is not a sequence of strings.
    """
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


def _load_folder(folder: Path, device: torch.device) -> tuple[TranslationModel, Vocabularies, tuple[str, str]]:
    check_input_type(folder, "text")
    vocabularies = Vocabularies.load(folder)
    model, metadata = load_model(folder, device)
    _check_vocabulary_sizes(folder, model, vocabularies)
    return model, vocabularies, _parse_languages(folder / CONFIG, metadata)


def _check_vocabulary_sizes(folder: Path, model: TranslationModel, vocabularies: Vocabularies) -> None:
    rows = (model.config.source_vocab, model.config.target_vocab)
    sizes = (len(vocabularies.source), len(vocabularies.target))
    if sizes != rows:
        raise UserError(
            f"{folder}: the tokenizer has {sizes[0]} and {sizes[1]} tokens, but the embeddings have {rows[0]} and "
            f"{rows[1]} rows; they were not saved together"
        )


def _parse_languages(path: Path, metadata: Mapping[str, Any]) -> tuple[str, str]:
    languages = metadata.get("languages", ["source", "target"])
    if not isinstance(languages, list) or len(languages) != 2:
        raise UserError(f"{path}: languages must be two codes, such as en and zh, not {languages!r}")
    return str(languages[0]), str(languages[1])
