"""Generators that run a model in another library: CTranslate2 or transformers."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.text.tokenizer import Vocabularies
from regard.decoding.constraints import DecodingConstraints, DecodingRequest
from regard.decoding.generator import BATCH_TOKENS
from regard.decoding.settings import DecodingSettings, SearchSettings, check_settings_type
from regard.decoding.stepper import TokenHypothesis
from regard.errors import UserError, import_optional, one_line
from regard.files import is_unchanged
from regard.masks import pad_batch
from regard.models.folder import FOREIGN_CONFIG, TranslationMetadata, build_on_meta, read_config

Tokens = Sequence[int]
UNSUPPORTED = ("coverage", "groups", "temperature", "top_k", "top_p", "epsilon", "mbr", "no_repeat", "min_length")
"""Search settings that other libraries lack or define differently."""


class ExternalGenerator:
    """Greedy and beam search with a length penalty in another library, whose attention is not accessible.

    Attributes:
        library: Name of the library, for errors.
        longest: Maximum number of tokens of either side, END included; None if unlimited.
    """

    settings_class: type[DecodingSettings] = SearchSettings
    has_attention = False
    library: str
    longest: int | None

    def check_settings(
        self, settings: DecodingSettings, constraints: DecodingConstraints, trees: bool, snapshots: bool
    ) -> SearchSettings:
        """Return the settings if the library supports them."""
        check_settings_type(settings, SearchSettings)
        assert isinstance(settings, SearchSettings)
        defaults = SearchSettings()
        unsupported = [name for name in UNSUPPORTED if getattr(settings, name) != getattr(defaults, name)]
        unsupported += ["length_penalty wu"] if settings.length_penalty == "wu" else []
        unsupported += [name for name in ("prefix", "required", "forbidden") if getattr(constraints, name)]
        unsupported += ["glossary"] if constraints.terms is not None else []
        unsupported += ["trees"] if trees else []
        unsupported += ["snapshots"] if snapshots else []
        if unsupported:
            raise UserError(f"{self.library} has no {', '.join(unsupported)}; omit it, or use the engine regard")
        return settings

    def batch_tokens(self, settings: DecodingSettings) -> int:
        return BATCH_TOKENS

    def max_target_length(self, source: Tokens, settings: SearchSettings) -> int:
        """Return the maximum length of the translation of `source`, END included."""
        limit = settings.max_target_length(len(source))
        return limit if self.longest is None else min(limit, self.longest)

    def log_probs(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> Tensor:
        raise UserError(f"{self.library} does not return log-probabilities of the vocabulary; use the engine regard")

    def run_forward(self, sources: Sequence[Tokens], found: Sequence[TokenHypothesis]) -> None:
        raise UserError(f"{self.library} does not return attention (probe, alignments); use the engine regard")

    def attention_rows(self, found: TokenHypothesis) -> list[int]:
        return list(range(len(found.tokens) + 1))


def engine_files(folder: Path) -> list[Path]:
    """Return the paths of the files that CTranslate2 reads: weights, configuration and vocabularies."""
    return [folder / "model.bin", folder / "config.json", *sorted(folder.glob("*_vocabulary.*"))]


def check_engine_files(folder: Path, described: Mapping[str, Any]) -> None:
    """Check the sizes and checksums of the files of CTranslate2, because damaged files can crash the process."""
    for path in engine_files(folder):
        if not is_unchanged(path, described.get(path.name)):
            raise UserError(f"{path}: does not match its checksum in the export; export the model again")


def load_export(
    folder: Path, device: torch.device
) -> tuple[Any, Vocabularies, TranslationMetadata, "CTranslate2Generator"]:
    """Load what `regard export --to ctranslate2` wrote. The model is on the meta device: the engine has the weights."""
    path = folder / FOREIGN_CONFIG
    config = read_config(folder, FOREIGN_CONFIG)
    model, vocabularies = build_on_meta(config, path), Vocabularies.load(folder)
    metadata = TranslationMetadata.select(config, path)
    check_engine_files(folder, metadata.files)
    return model, vocabularies, metadata, CTranslate2Generator(folder, vocabularies.tokens, device, metadata.longest)


class CTranslate2Generator(ExternalGenerator):
    """Generates translations with a model that CTranslate2 has loaded.

    Its beam search stops as soon as `beam` hypotheses have ended. Hypotheses have no token log-probabilities; `score`
    computes them.

    Args:
        folder: Folder with the files of the engine.
        vocabularies: Text of each token of the source and of the target, by id.
        options: Further arguments of the engine's translator, such as `compute_type`.
    """

    library = "CTranslate2"

    def __init__(
        self,
        folder: Path,
        vocabularies: tuple[Sequence[str], Sequence[str]],
        device: torch.device,
        longest: int | None,
        **options: Any,
    ) -> None:
        library = import_optional("ctranslate2", "export")
        threads = torch.get_num_threads()
        options |= {"device_index": device.index or 0} if device.type == "cuda" else {"intra_threads": threads}
        try:
            self._engine: Any = library.Translator(str(folder), device=device.type, **options)
            self._engine.translate_batch([vocabularies[0][:1]], max_decoding_length=1)  # reads the rest of its config
        except (RuntimeError, ValueError, LookupError) as error:
            raise UserError(f"{folder}: CTranslate2 cannot load it ({one_line(error)})") from None
        self._source_vocabulary, self._target_vocabulary = vocabularies
        self._target_ids = {token: index for index, token in enumerate(self._target_vocabulary)}
        self.longest = longest

    @property
    def precision(self) -> str:
        """Data type in which the engine computes."""
        return str(self._engine.compute_type)

    def resolve_settings(
        self, settings: DecodingSettings, constraints: DecodingConstraints, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        settings = self.check_settings(settings, constraints, trees, snapshots)
        if "stop" in settings.model_fields_set and settings.stop == "exact":
            raise UserError(f"{self.library} has no stop exact; omit it, or use the engine regard")
        return settings.changed(stop="first")

    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        assert isinstance(settings, SearchSettings)
        sources = [request.source for request in requests]
        for source in sources:
            self._check_length(source)
        limits = [self.max_target_length(source, settings) for source in sources]
        found = self._search(sources, settings, max(limits))
        # The engine has one length limit per batch. Sentences that reach their own lower limit are searched again.
        repeated = defaultdict(list)
        for index, (best, limit) in enumerate(zip(found, limits, strict=True)):
            if limit < max(limits) and any(len(one.tokens) + 1 >= limit for one in best):
                repeated[limit].append(index)
        for limit, indices in repeated.items():
            results = self._search([sources[index] for index in indices], settings, limit)
            for index, best in zip(indices, results, strict=True):
                found[index] = best
        self._rescore(sources, found, limits, settings)
        return [best[: settings.n_best] for best in found]

    def score(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        assert isinstance(settings, SearchSettings)
        for tokens in (*sources, *targets):
            self._check_length(tokens)
        results = self._engine.score_batch(
            self._to_text(sources),
            [[self._target_vocabulary[i] for i in tokens] for tokens in targets],
            max_input_length=0,
        )
        scored = []
        for target, result in zip(targets, results, strict=True):
            log_probs = list(result.log_probs)
            normaliser = settings.length_normaliser(float(len(log_probs)))
            scored.append(TokenHypothesis(list(target), sum(log_probs) / normaliser, log_probs))
        return scored

    def _search(self, sources: Sequence[Tokens], settings: SearchSettings, limit: int) -> list[list[TokenHypothesis]]:
        """Return all finished hypotheses of the beam. At the limit, END included, hypotheses are cut."""
        results = self._engine.translate_batch(
            self._to_text(sources),
            beam_size=settings.beam_width,
            num_hypotheses=settings.beam_width,
            length_penalty=0.0 if settings.length_penalty == "none" else settings.alpha,
            max_decoding_length=max(limit - 1, 1),
            min_decoding_length=0,
            max_input_length=0,
            return_scores=True,
        )
        return [
            [
                TokenHypothesis([self._target_ids[token] for token in hypothesis[: limit - 1]], score, [])
                for hypothesis, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _rescore(
        self,
        sources: Sequence[Tokens],
        found: list[list[TokenHypothesis]],
        limits: Sequence[int],
        settings: SearchSettings,
    ) -> None:
        """Score with END the hypotheses that were cut, and those of greedy search, which are not normalised."""
        indices = [
            (i, n)
            for i, best in enumerate(found)
            for n, one in enumerate(best)
            if len(one.tokens) + 1 >= limits[i] or settings.beam_width == 1
        ]
        if not indices:
            return
        scored = self.score([sources[i] for i, _ in indices], [found[i][n].tokens for i, n in indices], settings)
        for (i, n), one in zip(indices, scored, strict=True):
            found[i][n] = TokenHypothesis(one.tokens, one.score, [])
        for i in {i for i, _ in indices}:
            found[i].sort(key=lambda one: -one.score)

    def _check_length(self, tokens: Tokens) -> None:
        if self.longest is not None and len(tokens) + 1 > self.longest:
            raise UserError(
                f"a sentence of {len(tokens)} tokens is too long for {self.library}, whose positions end at "
                f"{self.longest - 1}"
            )

    def _to_text(self, sources: Sequence[Tokens]) -> list[list[str]]:
        return [[self._source_vocabulary[i] for i in source] for source in sources]


class TransformersGenerator(ExternalGenerator):
    """Generates one translation per sentence, without scores, with an encoder-decoder model of transformers.

    The model must have been trained with END at the end of the source.
    """

    library = "transformers"

    def __init__(self, model: Any) -> None:
        self.model, self.config = model.eval(), model.config
        self.longest = self.config.max_position_embeddings

    def resolve_settings(
        self, settings: DecodingSettings, constraints: DecodingConstraints, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        settings = self.check_settings(settings, constraints, trees, snapshots)
        if settings.n_best > 1:
            raise UserError(f"{self.library} returns one translation per sentence here; omit n_best")
        return settings

    @torch.no_grad()
    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        assert isinstance(settings, SearchSettings)
        sources = [request.source for request in requests]
        beam: dict[str, Any] = {}
        if settings.beam_width > 1:
            beam["early_stopping"] = True if settings.stop == "first" else "never"  # "never" is our "exact"
            beam["length_penalty"] = 0.0 if settings.length_penalty == "none" else settings.alpha
        limits = [self.max_target_length(source, settings) for source in sources]
        force_end = _ForceEnd(limits, settings.beam_width, self.config.eos_token_id)
        rows = self.model.generate(
            **self._inputs(sources),
            num_beams=settings.beam_width,
            do_sample=False,
            max_new_tokens=max(limits),  # includes END but not the decoder's start token
            logits_processor=import_optional("transformers", "hf").LogitsProcessorList([force_end]),
            **beam,
        )
        return [[TokenHypothesis(self._strip(row), 0.0, [])] for row in rows.tolist()]

    @torch.no_grad()
    def score(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        assert isinstance(settings, SearchSettings)
        start, end = self.config.decoder_start_token_id, self.config.eos_token_id
        inputs, _ = pad_batch([[start, *target] for target in targets], self.config.pad_token_id, self.model.device)
        log_probs = self.model(**self._inputs(sources), decoder_input_ids=inputs).logits.log_softmax(-1)
        scored = []
        for target, row in zip(targets, log_probs, strict=True):
            labels = torch.tensor([*target, end])
            token_log_probs = row[torch.arange(len(labels)), labels].tolist()
            score = sum(token_log_probs) / settings.length_normaliser(float(len(labels)))
            scored.append(TokenHypothesis(list(target), score, token_log_probs))
        return scored

    def _inputs(self, sources: Sequence[Tokens]) -> dict[str, Tensor]:
        end = self.config.eos_token_id
        ids, layout = pad_batch([[*source, end] for source in sources], self.config.pad_token_id, self.model.device)
        return {"input_ids": ids, "attention_mask": layout.real().long()}

    def _strip(self, row: list[int]) -> list[int]:
        """Remove the decoder's start token, END, and padding."""
        end = self.config.eos_token_id
        tokens = row[1:]
        return tokens[: tokens.index(end)] if end in tokens else tokens


class _ForceEnd:
    """Logits processor that allows only END at the length limit of each sentence, as regard's search does.

    `generate` itself has one limit per batch and cuts unfinished hypotheses without END. Its `forced_eos_token_id` also
    has one limit, and ignores the probability of END.
    """

    def __init__(self, limits: Sequence[int], beam: int, end: int) -> None:
        self.end = end
        self.rows_by_limit: dict[int, list[int]] = {}
        for sentence, limit in enumerate(limits):
            self.rows_by_limit.setdefault(limit, []).extend(range(sentence * beam, (sentence + 1) * beam))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # The decoder's start token makes up for END, which is still missing.
        rows = self.rows_by_limit.get(input_ids.shape[1])
        if rows is None:
            return scores
        forced = scores.clone()
        forced[rows] = -torch.inf
        forced[rows, self.end] = scores[rows, self.end]
        return forced
