"""Models of other libraries as model folders of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from regard.data.text.tokenizer import Tokenizer
from regard.data.text.vocabularies import Vocabularies
from regard.errors import UserError
from regard.interop.huggingface_bert import KIND as BERT
from regard.interop.huggingface_bert import from_bert, read_bert, read_pooling
from regard.interop.huggingface_marian import CLASSES, TARGET, UNKNOWN, forbid_words, from_marian, read_marian
from regard.interop.huggingface_tokenizers import (
    from_fast_tokenizer,
    from_marian_tokenizer,
    has_marian_tokenizer,
    read_word_pieces,
)
from regard.interop.tensors import read_folder, read_tensors
from regard.interop.torch import Embeddings, from_torch, read_torch
from regard.interop.vision_config import TAKING, Library, VisionConfig, infer_vision, read_huggingface, recognise
from regard.models.bert import BertConfig
from regard.models.card import CARD, build_card
from regard.models.folder import CONFIG, describe_export, is_model_folder, replace_folder, save_model
from regard.models.registry import MODELS
from regard.models.transformer import Transformer, TransformerConfig
from regard.pipelines.classifier import IMAGES
from regard.pipelines.embedder import Embedder
from regard.pipelines.preprocessing import ImagePreprocessing
from regard.pipelines.translator import Translator

POOLING, MODULES = Path("1_Pooling") / CONFIG, "modules.json"
"""Where sentence-transformers says how the vectors of tokens become that of a text."""
READABLE = (*CLASSES, BERT, "vit", "swin")
"""What `model_type` of a folder of transformers may be."""
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def import_model(
    path: Path,
    out: Path,
    changes: Mapping[str, Any] | None = None,
    embeddings: Mapping[str, Any] | None = None,
    tokenizer: Path | None = None,
) -> str:
    """Writes the model of another library into a new model folder, and returns a sentence about it.

    Args:
        path: a folder of transformers, sentence-transformers or timm, or a file of weights of timm, torchvision or an
            `nn.Transformer`.
        out: the new folder.
        changes: what the files do not tell of our config, such as heads.
        embeddings: of the module round an `nn.Transformer`, as `Embeddings` has them.
        tokenizer: of ours, for an `nn.Transformer`.

    Raises:
        UserError: a file is missing or damaged, or holds what our models do not have; nothing is written then.
    """
    if out.exists():
        raise UserError(f"{out} exists already; choose another folder")
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if is_model_folder(path):
        raise UserError(f"{path}: a model folder or run of regard already; there is nothing to import")
    values = _read_json(path / CONFIG) if (path / CONFIG).is_file() else {}
    export = None if "model_type" in values else describe_export(path)
    if export is not None:
        raise UserError(f"{path} is {export}")
    tensors = read_folder(path) if path.is_dir() else read_tensors(path)
    kind = str(values.get("model_type"))
    if "model_type" in values and kind not in READABLE:
        raise UserError(f"{path / CONFIG}: model_type is {kind!r}; {', '.join(READABLE)} can be read")
    _refuse_unused(path, kind, {"--set": changes, "--embedding": embeddings, "--tokenizer": tokenizer})
    _refuse_nan(path, tensors)
    with replace_folder(out) as fresh, naming(path):
        if kind in CLASSES:
            said = _import_translation(path, values, tensors, fresh)
        elif kind == BERT:
            said = _import_encoder(path, values, tensors, fresh)
        elif embeddings is not None:
            names = Embeddings.parse(embeddings, "embedding")
            said = _import_torch(tensors, names, changes or {}, tokenizer, fresh)
        else:
            said = _import_vision(path, values, tensors, changes or {}, fresh)
        (fresh / CARD).write_text(build_card(fresh), encoding="utf-8")
    return said


def _refuse_unused(path: Path, kind: str, given: Mapping[str, Any]) -> None:
    """Refuses options that would change nothing in a model of this kind."""
    unused, why = list[str](), ""
    if kind in (*CLASSES, BERT):
        unused, why = list(given), f"config.json and the tokenizer beside it say all of a {kind}"
    elif kind in READABLE:
        unused, why = ["--embedding", "--tokenizer"], f"a {kind} has none"
    elif given["--embedding"] is None:
        unused, why = ["--tokenizer"], "it is for an nn.Transformer, whose embeddings are named with --embedding"
    for option in unused:
        if given[option]:
            raise UserError(f"{path}: leave {option} away: {why}")


def _refuse_nan(path: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype in _FLOATS and tensor.isnan().any():
            raise UserError(f"{path}: tensor {name} holds NaN, with which a model says nothing")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Whatever is refused within is refused with the name of this file or folder."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _import_translation(folder: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor], out: Path) -> str:
    generation = folder / "generation_config.json"
    chosen = dict(values) | (_read_json(generation) if generation.is_file() else {})
    tensors = forbid_words(tensors, chosen.get("bad_words_ids"), f"{folder}: bad_words_ids")
    config = read_marian(values, tensors, str(folder / CONFIG))
    model = _build(config, from_marian(tensors, config))
    source: Tokenizer
    target: Tokenizer
    if has_marian_tokenizer(folder):
        source, target = from_marian_tokenizer(folder)
    else:
        source = from_fast_tokenizer(folder)
        target = from_fast_tokenizer(folder / TARGET) if (folder / TARGET).is_dir() else source
    _save_translator(model, Vocabularies(source, target), out, _languages(folder))
    return f"a {values['model_type']} of {_count(model)} parameters"


def _import_encoder(folder: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor], out: Path) -> str:
    config = read_bert(values, str(folder / CONFIG))
    changes: dict[str, Any] = {}
    if (folder / POOLING).is_file():
        changes["pooling"] = read_pooling(_read_json(folder / POOLING), str(folder / POOLING))
    if (folder / MODULES).is_file():
        changes["normalise"] = ".Normalize" in (folder / MODULES).read_text(encoding="utf-8", errors="replace")
    config = config.changed(**changes)
    pieces = read_word_pieces(folder)
    if len(pieces) > config.vocab:
        raise UserError(f"{folder}: the tokenizer has {len(pieces)} pieces, but the model {config.vocab} rows")
    model = _build(config, from_bert(tensors, config))
    Embedder(model, pieces).save(out)
    return f"an encoder of {_count(model)} parameters"


def _import_torch(
    tensors: Mapping[str, Tensor], names: Embeddings, changes: Mapping[str, Any], tokenizer: Path | None, out: Path
) -> str:
    config = read_torch(tensors, names, changes)
    model = _build(config, from_torch(tensors, names, config))
    if tokenizer is None:
        save_model(out, model, {})
        return f"an nn.Transformer of {_count(model)} parameters, without a tokenizer"
    joint = Tokenizer.load(tokenizer)
    _save_translator(model, Vocabularies(joint, joint), out)
    return f"an nn.Transformer of {_count(model)} parameters"


def _import_vision(
    path: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor], changes: Mapping[str, Any], out: Path
) -> str:
    library: Library | None = "huggingface" if "model_type" in values else recognise(tensors)
    if library is None:
        lacking = f"no {CONFIG} in it, and " if path.is_dir() and not values else ""
        raise UserError(
            f"{path}: {lacking}neither a model of transformers, timm or torchvision; for an nn.Transformer, say where "
            "its embeddings are: --embedding source=NAME --embedding target=NAME --embedding output=NAME"
        )
    config: VisionConfig
    if library == "huggingface":
        config = read_huggingface(values, tensors, str(path / CONFIG))
        config = config.changed(**changes) if changes else config
    else:
        config = infer_vision(tensors, library, changes)
    model = _build(config, TAKING[library](tensors, config))
    about: dict[str, Any] = {}
    if config.classes and config.channels in (1, 3):
        about[IMAGES] = _read_images(path, values, config).model_dump(mode="json")
    save_model(out, model, about)
    return f"a {config.kind} of {library} with {_count(model)} parameters and {config.classes} classes"


def _read_images(path: Path, values: Mapping[str, Any], config: VisionConfig) -> ImagePreprocessing:
    """How images are shown to the model: as its files say, or as is usual with ImageNet."""
    labels = values.get("id2label", values.get("label_names"))
    if isinstance(labels, Mapping):
        labels = [labels.get(str(i)) for i in range(config.classes)]
    if not isinstance(labels, list) or len(labels) != config.classes or len(set(map(str, labels))) != config.classes:
        labels = [str(i) for i in range(config.classes)]
    processor = path / "preprocessor_config.json"
    shown = _read_json(processor) if processor.is_file() else values.get("pretrained_cfg", {})
    shown = shown if isinstance(shown, Mapping) else {}
    means = {key: shown.get(f"image_{key}", shown.get(key, usual)) for key, usual in IMAGENET.items()}
    if config.channels == 1 and all(isinstance(value, list | tuple) and len(value) == 3 for value in means.values()):
        grey = ImagePreprocessing.parse({"classes": ("any",), "size": 1, "channels": 3} | means, str(processor))
        means = {"mean": (fmean(grey.mean),), "std": (fmean(grey.std),)}
    return ImagePreprocessing.parse(
        {"classes": list(map(str, labels)), "size": config.image[0], "channels": config.channels} | means,
        str(processor),
    )


def _languages(folder: Path) -> tuple[str, str]:
    """From which into which, where the tokenizer's settings say so."""
    path = folder / "tokenizer_config.json"
    values = _read_json(path) if path.is_file() else {}
    source, target = values.get("source_lang"), values.get("target_lang")
    return (source, target) if isinstance(source, str) and isinstance(target, str) else UNKNOWN


def _save_translator(
    model: Transformer, vocabularies: Vocabularies, out: Path, languages: tuple[str, str] = UNKNOWN
) -> None:
    sizes = (len(vocabularies.source), len(vocabularies.target))
    if sizes != (model.config.source_vocab, model.config.target_vocab):
        raise UserError(
            f"the tokenizers have {sizes[0]} and {sizes[1]} pieces, but the model {model.config.source_vocab} and "
            f"{model.config.target_vocab} rows"
        )
    Translator(model, vocabularies, languages).save(out)


def _build(config: TransformerConfig | BertConfig | VisionConfig, tensors: Mapping[str, Tensor]) -> Any:
    """The model with these tensors, which are known to fit: only now does a large config cost memory."""
    model = MODELS[config.kind].build(config.model_dump(), "config")
    model.load_state_dict({name: tensor.to(torch.float32) for name, tensor in tensors.items()})
    return model.eval()


def _count(model: torch.nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()):,}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged or not JSON ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds {type(content).__name__}, not keys and values")
    return content
