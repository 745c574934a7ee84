"""Import models of other libraries as regard model folders."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from regard.data.images.preprocessing import ImagePreprocessing
from regard.data.text.tokenizer import Tokenizer, Vocabularies
from regard.errors import UserError, prefix_errors
from regard.files import read_text
from regard.interop.argos_import import is_engine
from regard.interop.files import read_folder, read_json_object, read_optional_json, read_tensors
from regard.interop.huggingface_bert import KIND as BERT
from regard.interop.huggingface_bert import from_bert, read_bert, read_pooling
from regard.interop.huggingface_marian import CLASSES, ban_tokens, from_marian, read_marian
from regard.interop.huggingface_tokenizers import (
    MARIAN_SOURCE,
    TOKENIZER_CONFIG,
    from_fast_tokenizer,
    from_marian_tokenizer,
    read_wordpiece,
)
from regard.interop.huggingface_translation import TARGET_TOKENIZER, UNKNOWN_LANGUAGES
from regard.interop.huggingface_vision import from_huggingface, read_vision_config
from regard.interop.timm import from_timm, infer_timm, is_timm
from regard.interop.torch import Embeddings, from_torch, read_torch
from regard.interop.torchvision import from_torchvision, infer_torchvision, is_torchvision
from regard.models.bert import BertConfig
from regard.models.card import CARD, build_card
from regard.models.folder import CONFIG, MODELS, describe_export, is_model_folder, replace_folder, save_model
from regard.models.swin import SwinConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViTConfig
from regard.pipelines.classifier import IMAGES
from regard.pipelines.embedder import Embedder
from regard.pipelines.translator import Translator

POOLING, MODULES = Path("1_Pooling") / CONFIG, "modules.json"
"""Files of sentence-transformers."""
MODEL_TYPES = (*CLASSES, BERT, "vit", "swin")
"""Supported values of `model_type` in config.json of transformers."""
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def import_model(
    path: Path,
    out: Path,
    changes: Mapping[str, Any] | None = None,
    embeddings: Mapping[str, Any] | None = None,
    tokenizer: Path | None = None,
) -> str:
    """Convert a model of another library to a new model folder, and return a short description of it.

    Args:
        path: A folder of transformers, sentence-transformers, timm or CTranslate2, a package of Argos Translate, or a
            weights file of timm, torchvision or an `nn.Transformer`.
        changes: Keys of the config that cannot be inferred from the files, such as heads.
        embeddings: Names of the tensors around an `nn.Transformer`; see `Embeddings`.
        tokenizer: A regard tokenizer for an `nn.Transformer`; for CTranslate2, also a SentencePiece model.

    Raises:
        UserError: A file is missing or damaged, or regard does not support the model; nothing is written.
    """
    if out.exists():
        raise UserError(f"{out} exists already; choose another folder")
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if is_model_folder(path):
        raise UserError(f"{path}: already a model folder or run of regard; nothing to import")
    if is_engine(path):
        return _import_engine(path, out, {"--embedding": embeddings}, tokenizer, changes)
    values = read_optional_json(path / CONFIG)
    export = None if "model_type" in values else describe_export(path)
    if export is not None:
        raise UserError(f"{path} is {export}")
    tensors = read_folder(path) if path.is_dir() else read_tensors(path)
    kind = str(values.get("model_type"))
    if "model_type" in values and kind not in MODEL_TYPES:
        raise UserError(f"{path / CONFIG}: model_type is {kind!r}; supported are {', '.join(MODEL_TYPES)}")
    _check_options(path, kind, {"--set": changes, "--embedding": embeddings, "--tokenizer": tokenizer})
    for name, tensor in tensors.items():
        if tensor.dtype in _FLOATS and tensor.isnan().any():
            raise UserError(f"{path}: tensor {name} contains NaN")
    with replace_folder(out) as temporary, prefix_errors(path):
        if kind in CLASSES:
            description = _import_translator(path, values, tensors, temporary)
        elif kind == BERT:
            description = _import_bert(path, values, tensors, temporary)
        elif embeddings is not None:
            names = Embeddings.parse(embeddings, "embedding")
            description = _import_torch(tensors, names, changes or {}, tokenizer, temporary)
        else:
            description = _import_vision(path, values, tensors, changes or {}, temporary)
        (temporary / CARD).write_text(build_card(temporary), encoding="utf-8")
    return description


def _import_engine(
    path: Path, out: Path, unused: Mapping[str, Any], tokenizer: Path | None, changes: Mapping[str, Any] | None
) -> str:
    """Import a folder of CTranslate2 or a package of Argos Translate."""
    from regard.interop.argos_import import open_package
    from regard.interop.ctranslate2_import import import_engine

    for option, given in unused.items():
        if given:
            raise UserError(f"{path}: omit {option}: a model of CTranslate2 has none")
    with replace_folder(out) as temporary, open_package(path) as package, prefix_errors(path):
        translator, description = import_engine(
            package.model, tokenizer or package.tokenizer, changes, package.languages
        )
        translator.save(temporary)
        (temporary / CARD).write_text(build_card(temporary), encoding="utf-8")
    return description


def _check_options(path: Path, kind: str, options: Mapping[str, Any]) -> None:
    """Reject options that have no effect for this kind of model."""
    unused, reason = list[str](), ""
    if kind in (*CLASSES, BERT):
        unused, reason = list(options), f"config.json and the tokenizer describe a {kind} completely"
    elif kind in MODEL_TYPES:
        unused, reason = ["--embedding", "--tokenizer"], f"a {kind} has none"
    elif options["--embedding"] is None:
        unused, reason = ["--tokenizer"], "it is for an nn.Transformer, whose embeddings are given with --embedding"
    for option in unused:
        if options[option]:
            raise UserError(f"{path}: omit {option}: {reason}")


def _import_translator(folder: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor], out: Path) -> str:
    settings = dict(values) | read_optional_json(folder / "generation_config.json")
    tensors = ban_tokens(tensors, settings.get("bad_words_ids"), f"{folder}: bad_words_ids")
    config = read_marian(values, tensors, str(folder / CONFIG))
    model = _build(config, from_marian(tensors, config))
    source: Tokenizer
    target: Tokenizer
    if (folder / MARIAN_SOURCE).exists():
        source, target = from_marian_tokenizer(folder)
    else:
        source = from_fast_tokenizer(folder)
        target_folder = folder / TARGET_TOKENIZER
        target = from_fast_tokenizer(target_folder) if target_folder.is_dir() else source
    _save_translator(model, Vocabularies(source, target), out, _read_languages(folder))
    return f"a {values['model_type']} with {_count_parameters(model)} parameters"


def _import_bert(folder: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor], out: Path) -> str:
    config = read_bert(values, str(folder / CONFIG))
    changes: dict[str, Any] = {}
    if (folder / POOLING).exists():
        changes["pooling"] = read_pooling(read_json_object(folder / POOLING), str(folder / POOLING))
    if (folder / MODULES).exists():
        changes["normalise"] = ".Normalize" in read_text(folder / MODULES, errors="replace")
    config = config.changed(**changes)
    tokenizer = read_wordpiece(folder)
    if len(tokenizer) > config.vocab:
        raise UserError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, but the embedding has {config.vocab} rows"
        )
    model = _build(config, from_bert(tensors, config))
    Embedder(model, tokenizer).save(out)
    return f"an encoder with {_count_parameters(model)} parameters"


def _import_torch(
    tensors: Mapping[str, Tensor], names: Embeddings, changes: Mapping[str, Any], tokenizer: Path | None, out: Path
) -> str:
    config = read_torch(tensors, names, changes)
    model = _build(config, from_torch(tensors, names, config))
    description = f"an nn.Transformer with {_count_parameters(model)} parameters"
    if tokenizer is None:
        save_model(out, model, {})
        return f"{description}, without a tokenizer"
    joint = Tokenizer.load(tokenizer)
    _save_translator(model, Vocabularies(joint, joint), out)
    return description


def _import_vision(
    path: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor], changes: Mapping[str, Any], out: Path
) -> str:
    config: ViTConfig | SwinConfig
    if "model_type" in values:
        library = "huggingface"
        config = read_vision_config(values, tensors, str(path / CONFIG))
        config = config.changed(**changes) if changes else config
        state_dict = from_huggingface(tensors, config)
    elif is_torchvision(tensors):
        library, config = "torchvision", infer_torchvision(tensors, changes)
        state_dict = from_torchvision(tensors, config)
    elif is_timm(tensors):
        library, config = "timm", infer_timm(tensors, changes)
        state_dict = from_timm(tensors, config)
    else:
        missing = f"no {CONFIG}, and " if path.is_dir() and not values else ""
        raise UserError(
            f"{path}: {missing}the tensors are not those of a timm or torchvision model; for an nn.Transformer, give "
            "its embeddings: --embedding source=NAME --embedding target=NAME --embedding output=NAME"
        )
    model = _build(config, state_dict)
    metadata: dict[str, Any] = {}
    if config.classes and config.channels in (1, 3):
        metadata[IMAGES] = _read_preprocessing(path, values, config).model_dump(mode="json")
    save_model(out, model, metadata)
    return f"a {config.kind} of {library} with {_count_parameters(model)} parameters and {config.classes} classes"


def _read_preprocessing(path: Path, values: Mapping[str, Any], config: ViTConfig | SwinConfig) -> ImagePreprocessing:
    """Return the preprocessing given in the files, with ImageNet's mean and standard deviation by default."""
    labels = values.get("id2label", values.get("label_names"))
    if isinstance(labels, Mapping):
        labels = [labels.get(str(i)) for i in range(config.classes)]
    if not isinstance(labels, list) or len(labels) != config.classes or len(set(map(str, labels))) != config.classes:
        labels = [str(i) for i in range(config.classes)]
    processor_path = path / "preprocessor_config.json"
    processor = read_optional_json(processor_path) or values.get("pretrained_cfg", {})
    processor = processor if isinstance(processor, Mapping) else {}
    where = str(processor_path)
    moments = {key: processor.get(f"image_{key}", processor.get(key, default)) for key, default in IMAGENET.items()}
    if config.channels == 1 and all(isinstance(value, list | tuple) and len(value) == 3 for value in moments.values()):
        colour = ImagePreprocessing.parse({"classes": ("any",), "size": 1, "channels": 3} | moments, where)
        moments = {"mean": (fmean(colour.mean),), "std": (fmean(colour.std),)}
    image = {"classes": list(map(str, labels)), "size": config.image[0], "channels": config.channels}
    return ImagePreprocessing.parse(image | moments, where)


def _read_languages(folder: Path) -> tuple[str, str]:
    """Return the languages in the tokenizer's config."""
    values = read_optional_json(folder / TOKENIZER_CONFIG)
    source, target = values.get("source_lang"), values.get("target_lang")
    return (source, target) if isinstance(source, str) and isinstance(target, str) else UNKNOWN_LANGUAGES


def _save_translator(
    model: Transformer, vocabularies: Vocabularies, out: Path, languages: tuple[str, str] = UNKNOWN_LANGUAGES
) -> None:
    sizes = (len(vocabularies.source), len(vocabularies.target))
    rows = (model.config.source_vocab, model.config.target_vocab)
    if sizes != rows:
        raise UserError(f"the tokenizers have {sizes} tokens, but the embeddings have {rows} rows (source, target)")
    Translator(model, vocabularies, languages).save(out)


def _build(config: TransformerConfig | BertConfig | ViTConfig | SwinConfig, tensors: Mapping[str, Tensor]) -> Any:
    """Build the model only after the tensors have been checked, because an invalid config could be very large."""
    model: Any = MODELS[config.kind](config)
    model.load_state_dict({name: tensor.to(torch.float32) for name, tensor in tensors.items()})
    return model.eval()


def _count_parameters(model: torch.nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()):,}"
