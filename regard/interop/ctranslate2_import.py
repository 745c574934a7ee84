"""Import translation models of CTranslate2, with their tokenizer, and verify them with the engine."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.data.text.sentencepiece import SentencePieceTokenizer, SpecialTokens
from regard.data.text.tokenizer import Tokenizer, Vocabularies, has_tokenizer
from regard.errors import UserError, import_optional
from regard.files import MissingFileError, read_bytes
from regard.files import read_json as read_any_json
from regard.interop.ctranslate2 import POSITIONS
from regard.interop.ctranslate2_file import EngineFile, read_engine_file
from regard.interop.ctranslate2_weights import read_engine_config
from regard.interop.files import read_json_object, read_optional_json
from regard.interop.huggingface_translation import UNKNOWN_LANGUAGES
from regard.interop.verification import check_agreement, compare, longest_input, sample_sources
from regard.models.folder import FOREIGN_CONFIG
from regard.models.transformer import Transformer, TransformerConfig
from regard.pipelines.external import CTranslate2Generator
from regard.pipelines.translator import Translator

WEIGHTS, CONFIG, VOCABULARY_MAP = "model.bin", "config.json", "vmap.txt"
SENTENCEPIECE_FILES = ("sentencepiece.model", "spm.model", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")
SOURCE_FILE, TARGET_FILE = "source.spm", "target.spm"
START = "<zero>"
"""Token that is added to models whose decoder starts from a vector of zeros."""
PADDING = ("<pad>", "<blank>", "｟blank｠")
EPSILON = "layer_norm_epsilon"
OPENNMT_START = "<s>"
"""Start of the decoder in OpenNMT, whose sources have no END."""
MAX_VOCABULARY_BYTES = 2**27
ENGINE_DEFAULTS: dict[str, Any] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "add_source_bos": False,
    "add_source_eos": False,
    "decoder_start_token": "<s>",
}
"""Settings of the engine that config.json may omit."""


class EngineModel(NamedTuple):
    """A folder of CTranslate2 after reading.

    Attributes:
        tokens: Tokens of the source and of the target, by id.
        special: Names of the special tokens.
        settings: Settings in config.json.
    """

    file: EngineFile
    config: TransformerConfig
    state_dict: dict[str, torch.Tensor]
    tokens: tuple[list[str], list[str]]
    special: SpecialTokens
    settings: dict[str, Any]


def import_engine(
    folder: Path,
    tokenizer: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    languages: tuple[str, str] | None = None,
) -> tuple[Translator, str]:
    """Read a folder of CTranslate2, and return its model as a verified translator with a description.

    Args:
        folder: Folder with model.bin, config.json and vocabularies.
        tokenizer: The tokenizer, if it is not in the folder: a SentencePiece model, or a tokenizer.json of regard.
        changes: `source_end`, if it cannot be inferred: whether END follows the source.
        languages: Codes of the source and target language.

    Raises:
        UserError: A file is missing or damaged, regard does not support the model, or the engine differs from it.
    """
    import_optional("ctranslate2", "export")
    engine = read_engine(folder, changes or {})
    vocabularies = find_tokenizers(folder, tokenizer, engine)
    model = Transformer(engine.config)
    model.load_state_dict({name: tensor.to(torch.float32) for name, tensor in engine.state_dict.items()})
    pairs = _read_directions(folder)
    first = pairs[0] if pairs else UNKNOWN_LANGUAGES
    translator = Translator(model.eval(), vocabularies, languages or first, directions=pairs if len(pairs) > 1 else ())
    count = sum(parameter.numel() for parameter in model.parameters())
    file = engine.file
    description = f"a Transformer of CTranslate2 (version {file.version}, {file.precision}) with {count:,} parameters"
    if not engine.config.source_end:
        description += ", whose sources have no END"
    return translator, "\n".join([description, *_verify(translator, engine, folder)])


def read_engine(folder: Path, changes: Mapping[str, Any]) -> EngineModel:
    """Read the weights, the configuration and the vocabularies."""
    if (folder / VOCABULARY_MAP).exists():
        raise UserError(
            f"{folder / VOCABULARY_MAP}: vocabulary maps are not supported; remove the file to import without"
        )
    file = read_engine_file(folder / WEIGHTS)
    values = _read_config(folder, file)
    tokens = _read_vocabularies(folder)
    special = _special_tokens(values, tokens, folder)
    source_end = _source_end(values, changes, special, folder)
    ids = {name: tokens[1].index(special[name]) for name in ("pad", "bos", "eos")}
    if source_end and (ids["eos"] >= len(tokens[0]) or tokens[0][ids["eos"]] != special["eos"]):
        raise UserError(
            f"{folder}: the id of {special['eos']} differs between source and target, which is not supported"
        )
    config, state_dict = read_engine_config(file, values | ids | {"source_end": source_end}, str(folder / WEIGHTS))
    if config.bos != ids["bos"]:  # the token that `read_engine_config` added
        shared = config.source_vocab > len(tokens[0])
        tokens = ([*tokens[0], *[START] * shared], [*tokens[1], START])
        special = {**special, "bos": START}
    for side, vocabulary, rows in zip(
        ("source", "target"), tokens, (config.source_vocab, config.target_vocab), strict=True
    ):
        if len(vocabulary) != rows:
            raise UserError(
                f"{folder}: the {side} vocabulary has {len(vocabulary):,} tokens, but the embedding {rows:,} rows"
            )
    return EngineModel(file, config, state_dict, tokens, special, values)


def _read_config(folder: Path, file: EngineFile) -> dict[str, Any]:
    """Return the settings of the engine: of config.json or, before version 6, of flags among the variables."""
    flags = _take_flags(file)
    given = read_json_object(folder / CONFIG) if file.version >= 6 else _settings_of_flags(flags)
    settings = ENGINE_DEFAULTS | {key: value for key, value in given.items() if key in {*ENGINE_DEFAULTS, EPSILON}}
    _check_settings(settings, folder / CONFIG)
    return settings


def _take_flags(file: EngineFile) -> dict[str, torch.Tensor | None]:
    """Remove the flags from the variables of the model, and return them; None for a missing one."""
    return {name: file.tensors.pop(name, None) for name in ("with_source_bos", "with_source_eos", "with_target_bos")}


def _settings_of_flags(flags: Mapping[str, torch.Tensor | None]) -> dict[str, Any]:
    starts_with_bos = flags["with_target_bos"] is None or _is_set(flags["with_target_bos"])
    return {
        "add_source_bos": _is_set(flags["with_source_bos"]),
        "add_source_eos": _is_set(flags["with_source_eos"]),
        "decoder_start_token": ENGINE_DEFAULTS["bos_token" if starts_with_bos else "eos_token"],
    }


def _check_settings(settings: Mapping[str, Any], where: Path) -> None:
    """Check the types of the settings, and that regard supports them."""
    if settings["decoder_start_token"] is None:
        raise UserError(
            f"{where}: decoder_start_token is null: the model expects a target prefix, such as a language token, which "
            "regard does not support"
        )
    for key in ("bos_token", "eos_token", "unk_token", "decoder_start_token"):
        if not isinstance(settings[key], str):
            raise UserError(f"{where}: {key} must be a token, not {settings[key]!r}")
    for key in ("add_source_bos", "add_source_eos"):
        if not isinstance(settings[key], bool):
            raise UserError(f"{where}: {key} must be true or false, not {settings[key]!r}")
    if settings["add_source_bos"]:
        raise UserError(f"{where}: add_source_bos is true, but regard has no token before the source")


def _is_set(flag: torch.Tensor | None) -> bool:
    return flag is not None and bool(flag.any())


def _read_vocabularies(folder: Path) -> tuple[list[str], list[str]]:
    shared = _read_vocabulary(folder, "shared")
    if shared is not None:
        return shared, shared
    sides = [_read_vocabulary(folder, side) for side in ("source", "target")]
    source, target = sides
    if source is None or target is None:
        if (folder / "source_1_vocabulary.json").exists() or (folder / "source_1_vocabulary.txt").exists():
            raise UserError(
                f"{folder}: the model has several embeddings for each source token, which regard does not have"
            )
        raise UserError(
            f"{folder}: no vocabulary; expected shared_vocabulary or source_ and target_vocabulary, .json or .txt"
        )
    return source, target


def _read_vocabulary(folder: Path, side: str) -> list[str] | None:
    """Return the tokens by id; None if there is no such file."""
    path = folder / f"{side}_vocabulary.json"
    try:
        tokens = read_any_json(path)
    except MissingFileError:
        path = path.with_suffix(".txt")
        try:
            content = read_bytes(path, MAX_VOCABULARY_BYTES)
        except MissingFileError:
            return None
        tokens = _split_lines(content, path)
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise UserError(f"{path}: must be a list of tokens")
    seen = set[str]()
    for token in tokens:
        if token in seen:
            raise UserError(f"{path}: contains the token {token[:40]!r} twice, so that its ids are ambiguous")
        seen.add(token)
    return tokens


def _split_lines(content: bytes, path: Path) -> list[str]:
    try:
        lines = content.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: damaged or not UTF-8 text (byte {error.start + 1})") from None
    # A carriage return belongs to the token, unless all lines end with one.
    return [line.removesuffix("\r") for line in lines] if all(line.endswith("\r") for line in lines) else lines


def _special_tokens(values: Mapping[str, Any], tokens: tuple[list[str], list[str]], folder: Path) -> SpecialTokens:
    source, target = ({token: index for index, token in enumerate(side)} for side in tokens)
    special = {"bos": values["decoder_start_token"], "eos": values["eos_token"], "unk": values["unk_token"]}
    for name in ("bos", "eos"):
        if special[name] not in target:
            raise UserError(f"{folder}: the target vocabulary has no token {special[name]}, which config.json names")
    # Padding is masked everywhere, so that any token serves.
    common = [token for token in PADDING if token in target and source.get(token) == target[token]]
    return {"pad": common[0] if common else special["eos"], **special}


def _source_end(values: Mapping[str, Any], changes: Mapping[str, Any], special: SpecialTokens, folder: Path) -> bool:
    """Return whether END follows the source.

    The engine adds it or not. If not, it depends on the program that calls the engine: tokenizers of transformers and
    fairseq add END, whose decoders start from padding or END; OpenNMT, whose decoders start from "<s>", does not.
    """
    unknown = changes.keys() - {"source_end"}
    if unknown:
        raise UserError(f"--set {min(unknown)}: the files describe the model completely except for source_end")
    given = changes.get("source_end", values["add_source_eos"] or special["bos"] != OPENNMT_START)
    if not isinstance(given, bool):
        raise UserError(f"--set source_end={given}: must be true or false")
    if values["add_source_eos"] and not given:
        raise UserError(f"--set source_end=false: {folder / CONFIG} states add_source_eos, so the source has END")
    return given


# Tokenizers


def find_tokenizers(folder: Path, tokenizer: Path | None, engine: EngineModel) -> Vocabularies:
    """Return the tokenizers with the ids of the engine's vocabularies."""
    if tokenizer is None and has_tokenizer(folder):
        return _check_tokens(Vocabularies.load(folder), engine, folder)
    if tokenizer is not None and tokenizer.suffix == ".json":
        joint = Tokenizer.load(tokenizer)
        return _check_tokens(Vocabularies(joint, joint), engine, tokenizer)
    source, target = _find_sentencepiece(folder, tokenizer)
    models = [
        _build_sentencepiece(path, ids, engine) for path, ids in zip((source, target), engine.tokens, strict=True)
    ]
    joint_tokenizer = engine.tokens[0] == engine.tokens[1] and models[0].model == models[1].model
    return Vocabularies(models[0], models[0] if joint_tokenizer else models[1])


def _find_sentencepiece(folder: Path, tokenizer: Path | None) -> tuple[Path, Path]:
    if tokenizer is not None:
        return tokenizer, tokenizer
    if (folder / SOURCE_FILE).exists():
        return folder / SOURCE_FILE, folder / TARGET_FILE
    for name in SENTENCEPIECE_FILES:
        if (folder / name).exists():
            return folder / name, folder / name
    raise UserError(
        f"{folder}: no tokenizer; copy {SOURCE_FILE} and {TARGET_FILE} or {SENTENCEPIECE_FILES[0]} into it, or give a "
        "SentencePiece model with --tokenizer FILE"
    )


def _build_sentencepiece(path: Path, tokens: Sequence[str], engine: EngineModel) -> SentencePieceTokenizer:
    """Return a tokenizer whose ids are those of the engine; tokens outside its vocabulary are unknown."""
    ids = {token: index for index, token in enumerate(tokens)}
    special = {name: token if token in ids else engine.special["eos"] for name, token in engine.special.items()}
    return SentencePieceTokenizer(read_bytes(path), ids, str(path), special)


def _check_tokens(vocabularies: Vocabularies, engine: EngineModel, where: Path) -> Vocabularies:
    """Check that a tokenizer of regard has the tokens of the engine's vocabularies."""
    for own, given in zip(vocabularies.tokens, engine.tokens, strict=True):
        if own != given:
            raise UserError(f"{where}: its tokens are not those of the vocabulary, so it does not belong to this model")
    return vocabularies


def _read_directions(folder: Path) -> list[tuple[str, str]]:
    """Return the pairs of languages that an export of regard states."""
    config = read_optional_json(folder / FOREIGN_CONFIG)
    listed = config.get("directions") or [config.get("languages")]
    pairs = [pair for pair in listed if isinstance(pair, list) and len(pair) == 2] if isinstance(listed, list) else []
    return [(source, target) for source, target in pairs if isinstance(source, str) and isinstance(target, str)]


# Verification


class _ImportedGenerator(CTranslate2Generator):
    """The engine with the folder's weights, and END after the source if the engine does not add it itself."""

    end: str | None = None

    def _to_text(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        texts = super()._to_text(sources)
        return texts if self.end is None else [[*text, self.end] for text in texts]


def _verify(translator: Translator, engine: EngineModel, folder: Path) -> list[str]:
    """Compare with the engine: with its weights in float32 exactly, and as they are stored for the summary."""
    longest = longest_input(engine.config, POSITIONS)
    sources = sample_sources(translator, longest=longest)
    exact = compare(translator, _open_engine(engine, folder, longest, "float32"), sources)
    check_agreement(exact, "the model in CTranslate2")
    if engine.file.precision == "float32":
        return [str(exact)]
    stored = compare(translator, _open_engine(engine, folder, longest, "default"), sources)
    return [f"with weights in float32, {exact}", stored.quantised_summary]


def _open_engine(engine: EngineModel, folder: Path, longest: int | None, compute_type: str) -> _ImportedGenerator:
    """Load the engine with what has been read and checked, because it trusts its files and may crash otherwise."""
    tokens = [[token for token in side if token != START] for side in engine.tokens]
    names = ("shared",) if tokens[0] == tokens[1] else ("source", "target")
    files: dict[str, Any] = {
        f"{name}_vocabulary.json": json.dumps(side).encode() for name, side in zip(names, tokens, strict=False)
    }
    if engine.file.version >= 6:
        files[CONFIG] = json.dumps(engine.settings).encode()
    with (folder / WEIGHTS).open("rb") as file:
        files[WEIGHTS] = file
        device = torch.device("cpu")
        generator = _ImportedGenerator(folder, engine.tokens, device, longest, compute_type=compute_type, files=files)
    if engine.config.source_end and not engine.settings["add_source_eos"]:
        generator.end = engine.special["eos"]
    return generator
