"""Small valid files of every format that regard reads, and the functions that read them, for tools/fuzz_files.py."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
import sentencepiece
import tokenizers
import torch
from PIL import Image
from safetensors.torch import save_file

from regard import SearchSettings
from regard.data.array_store import DamagedStoreError, StoreWriter
from regard.data.images.image_sets import ImageSettings, open_images
from regard.data.images.image_store import open_image_store
from regard.data.images.preprocessing import ImagePreprocessing, decode_image
from regard.data.text.corpus import align
from regard.data.text.encoding import tokenise_pairs
from regard.data.text.readers import Pair, PairRecord, read_parallel
from regard.data.text.sentencepiece import SentencePieceTokenizer
from regard.data.text.tokenizer import Tokenizer, Vocabularies
from regard.data.text.tokens import open_token_store, write_token_store
from regard.data.text.wordpiece import WordPieceTokenizer
from regard.errors import UserError
from regard.evaluation.metrics import Metrics
from regard.evaluation.report import read_reports, save_report
from regard.evaluation.translation import SystemOutput, evaluate
from regard.interop.ctranslate2 import save_ctranslate2, to_ctranslate2
from regard.interop.huggingface_bert import _NAMES as BERT_NAMES
from regard.interop.huggingface_marian import describe_marian, to_marian
from regard.interop.huggingface_vision import to_huggingface
from regard.interop.import_model import import_model
from regard.interop.renaming import export_tensors
from regard.interop.timm import to_timm
from regard.models.bert import Bert, BertConfig
from regard.models.card import build_card
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig
from regard.pipelines.classifier import Classifier
from regard.pipelines.embedder import Embedder
from regard.pipelines.translator import Translator
from regard.serving import training_log
from regard.serving.keys import Keys, make_key
from regard.serving.page_schemas import TrainingResponse
from regard.training.checkpoint import load_checkpoint, load_checkpoints, save_checkpoint
from regard.training.plot import draw, read_log
from regard.training.prepared_data import read_fingerprints, write_fingerprints
from regard.training.recipe import builtin_recipes
from regard.training.run_folder import load_initial_weights, rewind, save_initial_weights
from regard.training.tasks.registry import load_recipe
from tools import fuzz_texts

SMALL = {"width": 8, "heads": 2, "hidden": 8, "encoder_layers": 1, "decoder_layers": 1}
VIT = {"image": 8, "patch": 4, "width": 8, "layers": 1, "heads": 2, "hidden": 8, "classes": 2}
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "##c", ".")
PAIRS = [Pair("a b c", "d e"), Pair("b", "d d"), Pair('c "a" d', "e\\u"), Pair("我 a", "É")]
UNCHANGED = "unchanged"
"""Name of a file that is not mutated."""
SEARCH = SearchSettings(beam=2, max_ratio=0, max_extra=3)


class Target(NamedTuple):
    """A folder of valid files, and a function that reads it.

    Attributes:
        write: Writes the files into an empty folder.
        read: Called with the folder and the changed file; raises `allowed` for damaged files.
    """

    write: Callable[[Path], object]
    read: Callable[[Path, Path], object]
    allowed: tuple[type[Exception], ...] = (UserError,)


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.train(["a b c d e"] * 3, 266)


@cache
def _sentencepiece_tokenizer() -> SentencePieceTokenizer:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e", "e d c b a a", "b b c"] * 9),
        model_writer=model,
        vocab_size=16,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size()) if i not in (0, 1, 2)]
    ids = {piece: i for i, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    return SentencePieceTokenizer(model.getvalue(), ids, "seed")


@cache
def _translator() -> Translator:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.base(len(_tokenizer()), **SMALL))
    return Translator(model, Vocabularies(_tokenizer(), _tokenizer()), ("en", "de"))


@cache
def _vit() -> ViT:
    torch.manual_seed(0)
    return ViT(ViTConfig(**VIT))  # type: ignore[arg-type]


@cache
def _bert() -> Bert:
    torch.manual_seed(0)
    return Bert(BertConfig(vocab=len(WORDS), width=8, layers=1, heads=2, hidden=8, max_length=12))


def _wordpiece() -> Any:
    return tokenizers.BertWordPieceTokenizer({word: i for i, word in enumerate(WORDS)})._tokenizer


def _pixels(mode: str = "RGB", size: tuple[int, int] = (6, 5)) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(values).convert(mode)


def _encoded(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    content = io.BytesIO()
    _pixels(mode).save(content, kind, **options)
    return content.getvalue()


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


# Recipes

CUSTOM_RECIPE = """
data: {source: train.en, target: train.de, languages: [en, de], max_length: null, clean: {script: 0.5}}
model: {preset: tiny, dropout: 1e-1, attention: {kind: local, window: 8}}
optim: {lr: 3e-4, betas: [0.9, 0.98], schedule: cosine}
training: {steps: 100, seed: 7, compile: no}
search: {beam: 4, alpha: 0.6}
"""


def _write_recipes(folder: Path) -> None:
    (folder / "custom.yaml").write_text(CUSTOM_RECIPE)
    anchors = CUSTOM_RECIPE.replace("{steps", "{log_every: &n 5, validate_every: *n, steps")
    (folder / "anchors.yaml").write_text(anchors)
    for name in builtin_recipes():
        shutil.copy(Path(load_recipe.__code__.co_filename).parents[1] / "recipes" / f"{name}.yaml", folder)


def _read_recipes(folder: Path, changed: Path) -> None:
    load_recipe(changed).fixed_settings()


# Model folders


def _write_translator(folder: Path) -> None:
    _translator().save(folder)
    _write_scores(folder)


def _read_translator(folder: Path, changed: Path) -> None:
    loaded = Translator.load(folder)
    loaded.hypotheses(["a b z"], SEARCH)


def _write_scores(folder: Path) -> None:
    pairs = [Pair("a b", "c d e f g"), Pair("b", "d e f g h")]
    output = SystemOutput([pair.target for pair in pairs], SEARCH, "0123456789ab")
    metrics = Metrics(tokenisation="13a", lowercase=False, ter=False)
    save_report(evaluate(output, [p.source for p in pairs], [p.target for p in pairs], metrics), folder)


def _write_scored(folder: Path) -> None:
    _write_translator(folder)
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").rename(folder / UNCHANGED)
    fingerprint = {"bytes": 3, "sha256": "ab"}
    write_fingerprints(folder, {"files": {"a": fingerprint}, "settings": {}, "skipped": {}, "tokens": "x", "valid": {}})


def _read_scored(folder: Path, changed: Path) -> None:
    shutil.copy(folder / UNCHANGED, folder / "config.json")
    build_card(folder)
    (folder / "config.json").unlink()
    read_fingerprints(folder, tokens=str)
    reports = read_reports(folder / "scores.json")
    for report in reports:
        report.facts()
        report.conditions.differences(reports[0].conditions)
    if reports:
        save_report(reports[0], folder)


def _write_classifier(folder: Path) -> None:
    preprocessing = ImagePreprocessing(
        classes=("x", "y"), size=8, channels=3, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)
    )
    Classifier(_vit(), preprocessing).save(folder)


def _read_classifier(folder: Path, changed: Path) -> None:
    Classifier.load(folder)(np.zeros((4, 4, 3), np.uint8))


def _read_embedder(folder: Path, changed: Path) -> None:
    Embedder.load(folder).embed(["a b."])


def _read_tokenizer(folder: Path, changed: Path) -> None:
    loaded = Tokenizer.load(folder / "tokenizer.json")
    loaded.decode(loaded.encode("a b zÉ"))
    loaded.fingerprint()


# Corpora


def _write_corpora(folder: Path) -> None:
    tsv = "".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS).encode()
    jsonl = "".join(json.dumps(pair._asdict()) + "\n" for pair in PAIRS).encode()
    (folder / "a.tsv").write_bytes(tsv)
    (folder / "b.jsonl").write_bytes(jsonl)
    (folder / "c.tsv.gz").write_bytes(gzip.compress(tsv))
    (folder / "d.jsonl.xz").write_bytes(lzma.compress(jsonl))
    with pyarrow.output_stream(str(folder / "e.tsv.zst"), compression="zstd") as stream:
        stream.write(tsv)
    table = pyarrow.table({"source": [p.source for p in PAIRS], "target": [p.target for p in PAIRS]})
    pyarrow.parquet.write_table(table, folder / "f.parquet")
    nested = pyarrow.table({"translation": [{"source": p.source, "target": p.target} for p in PAIRS]})
    pyarrow.parquet.write_table(nested, folder / "g.parquet", compression="zstd")
    (folder / "lines.txt").write_text("".join(f"{pair.source}\n" for pair in PAIRS))
    (folder / "links.align").write_text("0-0 1-1\n0-0\n\n0-0 1-0\n")


def _read_corpora(folder: Path, changed: Path) -> None:
    if changed.name == "links.align":
        records = (PairRecord(pair, "seed", line) for line, pair in enumerate(PAIRS, 1))
        links = list(align(records, changed))
        assert len(links) == len(PAIRS)
        return
    target = folder / "lines.txt" if changed.suffix == ".txt" else None
    keys = ("translation.source", "translation.target") if changed.name == "g.parquet" else ("source", "target")
    pairs = list(read_parallel(changed, target, keys=keys))
    tokenise_pairs(pairs, _tokenizer(), _tokenizer())


# Images


def _write_images(folder: Path) -> None:
    kinds = {"jpg": "JPEG", "png": "PNG", "gif": "GIF", "bmp": "BMP", "webp": "WEBP", "tif": "TIFF", "ppm": "PPM"}
    for suffix, kind in kinds.items() | {("avif", "AVIF"), ("jp2", "JPEG2000")}:
        try:
            (folder / f"a.{suffix}").write_bytes(_encoded(kind))
        except (KeyError, OSError):  # this build of Pillow cannot write it
            continue
    (folder / "palette.png").write_bytes(_encoded("PNG", "P", transparency=3))
    (folder / "grey.tif").write_bytes(_encoded("TIFF", "I;16", compression="tiff_lzw"))
    Image.fromarray(np.linspace(0, 1, 30, dtype=np.float32).reshape(5, 6)).save(folder / "float.tif")
    (folder / "cmyk.jpg").write_bytes(_encoded("JPEG", "CMYK", progressive=True))
    exif = Image.Exif()
    exif[0x0112] = 6
    (folder / "turned.jpg").write_bytes(_encoded("JPEG", exif=exif))


def _read_image(folder: Path, changed: Path) -> None:
    decode_image(changed, "RGB", max_pixels=10**6)
    decode_image(changed.read_bytes(), "L", max_pixels=10**6, min_side=2)


def _write_image_sets(folder: Path) -> None:
    png = _encoded("PNG")
    (folder / "files").mkdir()
    (folder / "files" / "a.png").write_bytes(png)
    (folder / "files" / "list.csv").write_text("path,label,split\na.png,x,train\na.png,y,test\n")
    rows = {"image": [{"bytes": png, "path": "a"}] * 3, "label": [0, 1, 0]}
    features = json.dumps({"info": {"features": {"label": {"names": ["x", "y"]}}}})
    table = pyarrow.table(rows).replace_schema_metadata({"huggingface": features})
    (folder / "table").mkdir()
    pyarrow.parquet.write_table(table, folder / "table" / "a.parquet")
    for name in ("a.tar", "b.tar.gz", "c.tar"):
        (folder / name.replace(".", "-")).mkdir()
        with tarfile.open(folder / name.replace(".", "-") / name, "w:gz" if name.endswith("gz") else "w") as archive:
            label = b'{"label": 1}' if name == "c.tar" else b""
            members = {"0.png": png, "0.json": label} if label else {"x/0.png": png, "y/1.png": png}
            for member, content in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    images = b"\0\0\x08\x03" + bytes([0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 3]) + bytes(range(18))
    labels = b"\0\0\x08\x01" + bytes([0, 0, 0, 2, 1, 0])
    for kind, compress in (("idx", bytes), ("idx-gz", gzip.compress)):
        (folder / kind).mkdir()
        suffix = ".gz" if kind == "idx-gz" else ""
        (folder / kind / f"train-images-idx3-ubyte{suffix}").write_bytes(compress(images))
        (folder / kind / f"train-labels-idx1-ubyte{suffix}").write_bytes(compress(labels))


def _read_image_set(folder: Path, changed: Path) -> None:
    path = changed if changed.suffix == ".csv" else folder / changed.relative_to(folder).parts[0]
    path = changed.with_name("list.csv") if changed.name == "a.png" else path
    images = open_images(path, ImageSettings(max_pixels=10**6))
    images.fingerprint()
    images.read(0)


# Run folders


def _write_checkpoints(folder: Path) -> None:
    for step in (1, 2):
        tensors = {"model.a": torch.ones(3), "optimizer.b": torch.zeros(2, 2)}
        save_checkpoint(folder / "checkpoints", step, tensors, {"step": step, "seconds": 1.5, "log": [1, {"a": 2}]}, 2)


def _read_checkpoints(folder: Path, changed: Path) -> None:
    newest = load_checkpoint(folder / "checkpoints", lambda warning: None)
    if newest is not None:
        newest.tensors()
        assert newest.step > 0 and newest.processes > 0
    load_checkpoints(folder / "checkpoints")


def _write_stores(folder: Path) -> None:
    tokens = tokenise_pairs(PAIRS, _tokenizer(), _tokenizer())
    write_token_store(folder / "tokens", [[tokens]], {"source": 300, "target": 300})
    with StoreWriter(folder / "images") as store:
        store.add_array("pixels", np.uint8, (3, 2, 2)).append(np.ones((2, 3, 2, 2), np.uint8))
        store.add_array("labels", np.int64).append(np.array([0, 1]))
        store.add_array("rows", np.int64).append(np.array([0, 1]))
        store.metadata |= {"classes": ["x", "y"], "size": 2, "fit": "crop", "images": "ab"}


def _read_stores(folder: Path, changed: Path) -> None:
    if changed.parent.name == "tokens":
        tokens = open_token_store(folder / "tokens")
        tokens.longest_pairs(2)
    else:
        images = open_image_store(folder / "images")
        assert len(images) >= 0


def _write_run(folder: Path) -> None:
    entries = [
        {"step": 1, "loss": 2.5, "seconds": 0.1, "lr": 0.1, "tokens": 5, "gradient_norm": None},
        {"step": 2, "validation": {"loss": 2.0, "bleu": 1.5}, "seconds": 0.2, "event": "skipped"},
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    save_initial_weights(folder, _vit())


def _read_run(folder: Path, changed: Path) -> None:
    if changed.suffix == ".safetensors":
        load_initial_weights(folder, _vit())
        return
    part = training_log.read_log(folder, 0)
    TrainingResponse(entries=part.entries, next=part.next, steps=[], has_model=False).model_dump_json()
    entries = read_log(folder)
    draw(["run"], [entries], "step")
    rewind(folder, 1)


# Models of other libraries


def _write_huggingface_vit(folder: Path) -> None:
    config = ViTConfig(**VIT, norm_eps=1e-12)  # type: ignore[arg-type]
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size")
    values: dict[str, Any] = dict(zip(names, (8, 1, 2, 8, 8, 4), strict=True))
    values |= {"model_type": "vit", "num_channels": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "qkv_bias": True}
    _write_json(folder / "config.json", values | {"id2label": {"0": "bee", "1": "cat"}})
    _write_json(folder / "preprocessor_config.json", {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.2, 0.2, 0.2]})
    tensors = to_huggingface(_vit().state_dict(), config)
    shards = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(shards.values()):
        save_file({name: t for name, t in tensors.items() if shards[name] == shard}, folder / shard)
    _write_json(folder / "model.safetensors.index.json", {"weight_map": shards})


def _write_timm(folder: Path) -> None:
    weights = to_timm(_vit().state_dict(), _vit().config)
    torch.save(weights, folder / "timm.pt")
    save_file(weights, folder / "timm.safetensors")


def _read_timm(folder: Path, changed: Path) -> None:
    _import(changed, folder, changes={"heads": 2})


def _write_marian(folder: Path) -> None:
    spm = _sentencepiece_tokenizer()
    ids = spm.ids
    special = {"pad": ids["<pad>"], "bos": ids["<pad>"], "eos": ids["</s>"]}
    config = TransformerConfig.base(len(ids), **SMALL, norm="post", positions="sinusoidal-halves", **special)
    torch.manual_seed(0)
    values = describe_marian(config) | {"model_type": "marian", "bad_words_ids": [[ids["<pad>"]]]}
    _write_json(folder / "config.json", values)
    _write_json(folder / "generation_config.json", {"num_beams": 4})
    _write_json(folder / "vocab.json", ids)
    _write_json(folder / "tokenizer_config.json", {"source_lang": "en", "target_lang": "de"})
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(spm.model)
    save_file(to_marian(Transformer(config).state_dict(), config), folder / "model.safetensors")


def _write_bert(folder: Path) -> None:
    values = {"model_type": "bert", "vocab_size": len(WORDS), "hidden_size": 8, "num_hidden_layers": 1}
    values |= {"num_attention_heads": 2, "intermediate_size": 8, "hidden_act": "gelu", "max_position_embeddings": 12}
    _write_json(folder / "config.json", values | {"type_vocab_size": 2, "pad_token_id": 0})
    _write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    _write_json(folder / "modules.json", [{"type": "sentence_transformers.models.Normalize"}])
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    _write_json(folder / "tokenizer_config.json", {"do_lower_case": True})
    save_file(export_tensors(_bert().state_dict(), _bert().config, BERT_NAMES), folder / "model.safetensors")


def _write_nn_transformer(folder: Path) -> None:
    torch.manual_seed(0)
    tensors = torch.nn.Transformer(8, 2, 1, 1, 8, batch_first=True).state_dict()
    tensors |= {name: torch.randn(len(_tokenizer()), 8) for name in ("src", "tgt", "out")}
    torch.save({"state_dict": tensors}, folder / "weights.pt")
    _tokenizer().save(folder / "tokenizer.json")


def _read_nn_transformer(folder: Path, changed: Path) -> None:
    embeddings = {"source": "src", "target": "tgt", "output": "out", "scaled": "false"}
    _import(folder / "weights.pt", folder, {"heads": 2}, embeddings, folder / "tokenizer.json")


def _read_foreign(folder: Path, changed: Path) -> None:
    _import(folder, folder)


def _import(path: Path, folder: Path, changes: Any = None, embeddings: Any = None, tokens: Any = None) -> None:
    out = folder.with_name(f"{folder.name}-imported")
    try:
        import_model(path, out, changes, embeddings, tokens)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _write_engine(folder: Path) -> None:
    save_ctranslate2(_translator(), folder, "int8")
    (folder / "regard.json").unlink()  # its checksums would reject every change


def _write_argos(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary) / "p"
        (home / "model").mkdir(parents=True)
        tokenizer = _sentencepiece_tokenizer()
        sizes = {"source_vocab": len(tokenizer), "target_vocab": len(tokenizer), **tokenizer.special_ids}
        torch.manual_seed(0)
        model = Transformer(TransformerConfig.parse(SMALL | sizes, "seed"))
        to_ctranslate2(model, (tokenizer.vocabulary, tokenizer.vocabulary), home / "model", "int8")
        (home / "sentencepiece.model").write_bytes(tokenizer.model)
        _write_json(home / "metadata.json", {"from_code": "en", "to_code": "de"})
        shutil.make_archive(str(Path(temporary) / "p"), "zip", temporary, "p")
        shutil.copy(Path(temporary) / "p.zip", folder / "p.argosmodel")


def _write_keys(folder: Path) -> None:
    (folder / "keys").write_text("# owner, hash, limit\n" + "".join(make_key(name)[1] for name in ("ada", "bob")))


TARGETS = {
    "recipe": Target(_write_recipes, _read_recipes),
    "translator": Target(_write_translator, _read_translator),
    "scores": Target(_write_scored, _read_scored),
    "classifier": Target(_write_classifier, _read_classifier),
    "embedder": Target(lambda folder: Embedder(_bert(), WordPieceTokenizer(_wordpiece())).save(folder), _read_embedder),
    "sentencepiece": Target(lambda folder: _sentencepiece_tokenizer().save(folder / "tokenizer.json"), _read_tokenizer),
    "corpus": Target(_write_corpora, _read_corpora),
    "image": Target(_write_images, _read_image),
    "image set": Target(_write_image_sets, _read_image_set),
    "checkpoint": Target(_write_checkpoints, _read_checkpoints),
    "store": Target(_write_stores, _read_stores, (UserError, DamagedStoreError)),
    "run": Target(_write_run, _read_run),
    "huggingface vit": Target(_write_huggingface_vit, _read_foreign),
    "timm": Target(_write_timm, _read_timm),
    "marian": Target(_write_marian, _read_foreign),
    "bert": Target(_write_bert, _read_foreign),
    "nn.Transformer": Target(_write_nn_transformer, _read_nn_transformer),
    "ctranslate2": Target(lambda folder: save_ctranslate2(_translator(), folder), _read_translator),
    "ctranslate2 import": Target(_write_engine, _read_foreign),
    "argos": Target(_write_argos, lambda folder, changed: _import(folder / "p.argosmodel", folder)),
    "document": Target(fuzz_texts.write_documents, fuzz_texts.read_document),
    "journal": Target(fuzz_texts.write_journal, fuzz_texts.read_journal),
    "memory": Target(fuzz_texts.write_memories, fuzz_texts.read_memory),
    "glossary": Target(fuzz_texts.write_glossaries, fuzz_texts.read_glossary),
    "keys": Target(_write_keys, lambda folder, changed: Keys.load(changed)),
}
