"""Import of models of CTranslate2: every option, precision and version, verified with the engine, and fine-tuning."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ctranslate2")
pytest.importorskip("sentencepiece")

from regard.decoding.settings import SearchSettings
from regard.errors import UserError
from regard.interop.argos import export_argos
from regard.interop.ctranslate2 import load_translator, save_ctranslate2
from regard.interop.ctranslate2_file import read_engine_file
from regard.interop.ctranslate2_import import import_engine, read_engine
from regard.interop.export_model import export_model
from regard.interop.import_model import import_model
from regard.interop.verification import sample_sources
from regard.pipelines.translator import Translator
from regard.training.run import run_recipe
from tests.conftest import Command, small_recipe, toy_pairs
from tests.interop.engine_files import opennmt_vocabulary, save_opennmt, train_sentencepiece, write_engine_file
from tests.interop.random_models import COMBINED, random_translator, tokenizer

TEXTS = [pair.source for pair in toy_pairs()][:100]


@pytest.mark.parametrize("option", COMBINED)
def test_weights_and_configuration_survive_the_round_trip(option: str, tmp_path: Path) -> None:
    translator = random_translator(option)
    save_ctranslate2(translator, tmp_path)
    engine = read_engine(tmp_path, {})
    changed = {"final_norm": translator.model.config.has_final_norm}
    if option == "diagonal":  # the engine has tables only
        changed |= {"positions": "learned", "max_length": translator.model.config.width}
    expected = translator.model.config.model_dump() | changed
    assert engine.config.model_dump() | {"final_norm": engine.config.has_final_norm} == expected
    original = translator.model.state_dict()
    for name, tensor in engine.state_dict.items():
        if name in original:  # diagonal positions become learned ones
            assert torch.equal(tensor, original[name]), name
    assert original.keys() <= engine.state_dict.keys()


def test_imported_models_are_verified_with_the_engine(tmp_path: Path) -> None:
    translator = random_translator("post-and-all")
    save_ctranslate2(translator, tmp_path, "int8")
    imported, description = import_engine(tmp_path)
    assert "version 6, int8" in description and "with weights in float32, 48 sentences: identical" in description
    assert imported.vocabularies.tokens == translator.vocabularies.tokens


@pytest.mark.parametrize(
    ("quantization", "stored", "tolerance"),
    [
        ("int16", "int16", 1e-2),
        ("float16", "float16", 1e-3),
        ("bfloat16", "bfloat16", 1e-2),
        ("int8_float32", "int8", 3e-2),
        ("int8_float16", "int8", 3e-2),
    ],
)
def test_quantised_weights_are_dequantised(quantization: str, stored: str, tolerance: float, tmp_path: Path) -> None:
    translator = random_translator("pre")
    save_ctranslate2(translator, tmp_path, quantization)
    engine = read_engine(tmp_path, {})
    assert engine.file.precision == stored
    for name, tensor in translator.model.state_dict().items():
        found = engine.state_dict[name]
        assert (found.dtype == torch.float32 and not torch.equal(found, torch.zeros_like(found))) or not tensor.any()
        assert torch.allclose(found, tensor, rtol=0, atol=tolerance * float(tensor.abs().max())), name


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_older_versions_are_read(version: int, tmp_path: Path) -> None:
    save_ctranslate2(random_translator("pre-untied"), tmp_path)
    newest = read_engine(tmp_path, {})
    flags = {"with_source_eos": torch.tensor(1, dtype=torch.int8), "with_source_bos": torch.tensor(0, dtype=torch.int8)}
    tensors = read_engine_file(tmp_path / "model.bin").tensors | flags
    # Old vocabularies are text files, and START and END have fixed names.
    tokens = ["<s>" if token == "<bos>" else "</s>" if token == "<eos>" else token for token in newest.tokens[0]]
    (tmp_path / "shared_vocabulary.json").unlink()
    lines = [token.replace("\n", "N").replace("\r", "R") for token in tokens]
    (tmp_path / "shared_vocabulary.txt").write_bytes("".join(f"{token}\n" for token in lines).encode())
    (tmp_path / "config.json").unlink()
    write_engine_file(tmp_path / "model.bin", tensors, version, revision=5)
    engine = read_engine(tmp_path, {})
    assert engine.file.version == version
    assert engine.config == newest.config
    assert all(torch.equal(engine.state_dict[name], tensor) for name, tensor in newest.state_dict.items())


def test_int8_model_translates_alike_before_and_after_fine_tuning(
    trained_run: Path, toy: Path, tmp_path: Path, command: Command
) -> None:
    save_ctranslate2(Translator.load(trained_run), new_folder(tmp_path / "int8"), "int8")
    answer = command("import", tmp_path / "int8", tmp_path / "imported")
    assert answer.code == 0, answer.err
    assert "version 6, int8" in answer.out and "quantised: identical translations" in answer.out
    settings = SearchSettings(beam=4, stop="first")
    before = Translator.load(tmp_path / "int8").hypotheses(TEXTS, settings)
    imported = Translator.load(tmp_path / "imported").hypotheses(TEXTS, settings)
    assert sum(one[0].text == other[0].text for one, other in zip(before, imported, strict=True)) >= 98
    fine_tune(tmp_path / "imported", toy, tmp_path / "tuned")
    export_model(tmp_path / "tuned", tmp_path / "exported", "ctranslate2")  # float32: verified exactly
    tuned, exported = Translator.load(tmp_path / "tuned"), load_translator(tmp_path / "exported")
    texts = [beam[0].text for beam in tuned.hypotheses(TEXTS, settings)]
    assert [beam[0].text for beam in exported.hypotheses(TEXTS, settings)] == texts
    assert any(
        not torch.equal(one, other)
        for one, other in zip(
            tuned.model.parameters(), Translator.load(tmp_path / "imported").model.parameters(), strict=True
        )
    )


def new_folder(path: Path) -> Path:
    path.mkdir()
    return path


def fine_tune(initial: Path, toy: Path, out: Path, steps: int = 12) -> None:
    changes = {"init__from": str(initial), "training__steps": steps, "training__validate_every": steps}
    recipe = small_recipe(toy / "train.en", toy / "train.zh", **changes)
    keys = {key: value for key, value in recipe.model_dump(mode="json").items() if key not in ("model", "tokenizer")}
    run_recipe(type(recipe).parse(keys, "test"), out)


def test_package_of_argos_translate_keeps_tokenizer_and_languages(trained_run: Path, tmp_path: Path) -> None:
    translator = Translator.load(trained_run)
    export_argos(translator, new_folder(tmp_path / "out"), sample_sources(translator)[:8], None)
    import_model(tmp_path / "out", tmp_path / "imported")  # finds the package in the folder
    imported = Translator.load(tmp_path / "imported")
    assert imported.languages == ("en", "zh")
    assert imported.model.config.source_end
    settings = SearchSettings(beam=4, stop="first")
    expected, found = translator.hypotheses(TEXTS, settings), imported.hypotheses(TEXTS, settings)
    assert [beam[0].text for beam in found] == [beam[0].text for beam in expected]


@pytest.fixture(scope="module")
def opennmt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an unpacked package of Argos Translate with a model of OpenNMT-py."""
    folder = tmp_path_factory.mktemp("opennmt") / "package"
    (folder / "model").mkdir(parents=True)
    model = train_sentencepiece([text for pair in toy_pairs() for text in pair], 280)
    save_opennmt(folder / "model", opennmt_vocabulary(model, 280))
    (folder / "sentencepiece.model").write_bytes(model)
    (folder / "metadata.json").write_text(json.dumps({"from_code": "en", "to_code": "zh"}))
    (folder / "stanza").mkdir()
    (folder / "stanza" / "en.pt").write_bytes(b"\x80not read")
    return folder


def test_model_of_opennmt_has_no_end_of_the_source_and_is_fine_tuned(opennmt: Path, toy: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", opennmt.parent, opennmt.name)
    package = Path(archive).rename(tmp_path / "translate-en_zh.argosmodel")
    assert "whose sources have no END" in import_model(package, tmp_path / "imported")
    imported = Translator.load(tmp_path / "imported")
    config = imported.model.config
    assert (config.pad, config.bos, config.eos, config.source_end, config.tie) == (1, 2, 3, False, "all")
    fine_tune(tmp_path / "imported", toy, tmp_path / "tuned", steps=60)
    tuned = Translator.load(tmp_path / "tuned")
    assert tuned.model.config == config.changed(dropout=tuned.model.config.dropout)
    assert len(set(tuned(TEXTS[:20]))) > 1
    best = tuned.hypotheses(TEXTS[:1], alignments=True)[0][0]
    assert len(best.alignment[0]) == len(best.source_subwords)  # type: ignore[index]
    summary = export_model(tmp_path / "tuned", tmp_path / "exported", "ctranslate2")
    assert "log-probabilities within" in summary[0]
    vocabulary = json.loads((tmp_path / "exported" / "shared_vocabulary.json").read_text(encoding="utf-8"))
    assert vocabulary == list(imported.vocabularies.source.ids)  # type: ignore[attr-defined]
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["add_source_eos"] is False
    assert load_translator(tmp_path / "exported")(TEXTS[:9]) == tuned(TEXTS[:9], beam=4, stop="first")
    for to in ("huggingface", "onnx"):
        with pytest.raises(UserError, match="END"):
            export_model(tmp_path / "tuned", tmp_path / to, to)


@pytest.fixture
def model(opennmt: Path, tmp_path: Path) -> Path:
    """Return a folder of CTranslate2 with its SentencePiece model, which a test may change."""
    folder = Path(shutil.copytree(opennmt / "model", tmp_path / "model"))
    shutil.copy(opennmt / "sentencepiece.model", folder)
    return folder


def test_end_of_the_source_follows_from_the_start_of_the_decoder(model: Path) -> None:
    change_config(model, decoder_start_token="</s>")  # as in conversions from transformers, whose tokenizers add END
    imported, description = import_engine(model)
    assert imported.model.config.source_end and "no END" not in description
    assert imported.model.config.bos == imported.model.config.eos == 3
    imported, _ = import_engine(model, changes={"source_end": False})
    assert not imported.model.config.source_end
    change_config(model, add_source_eos=True)
    with pytest.raises(UserError, match=r"source_end=false: .* states add_source_eos"):
        read_engine(model, {"source_end": False})


def change_config(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))


def test_decoder_that_starts_from_zeros_gets_a_token(opennmt: Path, tmp_path: Path) -> None:
    vocabulary = json.loads((opennmt / "model" / "shared_vocabulary.json").read_text(encoding="utf-8"))
    save_opennmt(tmp_path, vocabulary, start_from_zero_embedding=True, decoder_start_token="</s>")
    imported, _ = import_engine(tmp_path, opennmt / "sentencepiece.model")
    assert imported.model.config.bos == len(vocabulary)
    assert not imported.model.target_embedding.weight[-1].any()
    tokens = [hypothesis.tokens for [hypothesis, *_] in imported.hypotheses(TEXTS[:5])]
    assert len(vocabulary) not in {token for row in tokens for token in row}


@pytest.mark.parametrize("scale", [False, 3.0])
def test_other_scales_of_embeddings_are_folded_into_the_weights(scale: float, opennmt: Path, tmp_path: Path) -> None:
    vocabulary = json.loads((opennmt / "model" / "shared_vocabulary.json").read_text(encoding="utf-8"))
    save_opennmt(tmp_path, vocabulary, scale_embeddings=scale)
    imported, _ = import_engine(tmp_path, opennmt / "sentencepiece.model")
    assert imported.model.config.tie == "none"


def test_positions_that_the_engine_computes_become_a_table(model: Path) -> None:
    tensors = read_engine_file(model / "model.bin").tensors
    without = {name: tensor for name, tensor in tensors.items() if not name.endswith("encodings")}
    write_engine_file(model / "model.bin", without)
    imported, _ = import_engine(model)
    assert (imported.model.config.positions, imported.model.config.max_length) == ("learned", 1024)


def test_tokenizer_of_regard_is_used_if_it_has_the_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    translator, folder = random_translator("post"), new_folder(tmp_path / "engine")
    save_ctranslate2(translator, folder)
    translator.vocabularies.source.save(tmp_path / "own.json")
    tokenizer(280).save(tmp_path / "other.json")
    for path in folder.glob("*tokenizer*"):
        path.unlink()
    imported, _ = import_engine(folder, tmp_path / "own.json")
    assert imported.vocabularies.fingerprint() == translator.vocabularies.fingerprint()
    with pytest.raises(UserError, match=r"other\.json: its tokens are not those of the vocabulary"):
        import_engine(folder, tmp_path / "other.json")


def test_missing_biases_and_old_names_are_read(model: Path) -> None:
    newest = read_engine(model, {})
    tensors = read_engine_file(model / "model.bin").tensors
    tensors["encoder/embeddings/weight"] = tensors.pop("encoder/embeddings_0/weight")
    bias = tensors.pop("encoder/layer_1/ffn/linear_0/bias")
    write_engine_file(model / "model.bin", tensors)
    older = read_engine(model, {})
    different = [name for name, tensor in newest.state_dict.items() if not torch.equal(older.state_dict[name], tensor)]
    assert older.config == newest.config and len(different) == 1
    assert bias.any() and torch.equal(older.state_dict[different[0]], torch.zeros_like(bias))


@pytest.mark.parametrize(
    ("specification", "revision", "heads"),
    [("TransformerSpec", 7, 8), ("TransformerBase", 2, 8), ("TransformerBig", 2, 16)],
)
def test_models_without_a_number_of_heads_have_that_of_their_kind(
    specification: str, revision: int, heads: int, model: Path
) -> None:
    with_variables(encoder__num_heads=None, decoder__num_heads=None)(model)
    as_specification(specification, revision)(model)
    imported, _ = import_engine(model)  # compares it with the engine
    assert imported.model.config.heads == heads


def test_tokenizers_are_found_beside_the_model(model: Path) -> None:
    content = (model / "sentencepiece.model").read_bytes()
    (model / "sentencepiece.model").rename(model / "source.spm")
    with pytest.raises(UserError, match=r"target.spm: no such file"):
        import_engine(model)
    (model / "target.spm").write_bytes(content)
    assert import_engine(model)[0].vocabularies.joint
    (model / "source.spm").unlink()
    with pytest.raises(UserError, match="no tokenizer; copy"):
        import_engine(model)


def with_variables(**changes: torch.Tensor | None) -> Callable[[Path], None]:
    """Add, replace or remove variables; "__" stands for "/"."""

    def apply(folder: Path) -> None:
        named = {name.replace("__", "/"): tensor for name, tensor in changes.items()}
        tensors = read_engine_file(folder / "model.bin").tensors | named
        write_engine_file(folder / "model.bin", {name: t for name, t in tensors.items() if t is not None})

    return apply


def as_specification(name: str, revision: int = 7, version: int = 6) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "model.bin"
        write_engine_file(path, read_engine_file(path).tensors, version, name, revision)

    return apply


def with_config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **changes)


def with_vocabulary(change: Callable[[list[str]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "shared_vocabulary.json"
        path.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))))

    return apply


def with_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "model.bin"
        path.write_bytes(change(path.read_bytes()))

    return apply


def without_encoder(folder: Path) -> None:
    tensors = read_engine_file(folder / "model.bin").tensors
    write_engine_file(folder / "model.bin", {name: t for name, t in tensors.items() if not name.startswith("encoder/")})


ONE, TABLE = torch.tensor(1, dtype=torch.int8), torch.zeros(41, 8)
START = 4 + 2 + len("TransformerSpec") + 1 + 4
"""Position of the number of variables in model.bin."""
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "Whisper": (as_specification("WhisperSpec"), "'WhisperSpec', revision 7; regard imports encoder-decoder"),
    "decoder only": (as_specification("TransformerDecoderSpec"), "encoder-decoder translation models"),
    "first revision": (as_specification("TransformerSpec", 1), "revision 1"),
    "version 7": (as_specification("TransformerSpec", 7, 7), "binary version 7"),
    "another file": (with_bytes(lambda content: b"PK\3\4" + content), "is no model of CTranslate2"),
    "empty": (with_bytes(lambda content: b""), "ends within the version"),
    "incomplete": (with_bytes(lambda content: content[:5000]), "ends within"),
    "many variables": (
        with_bytes(lambda c: c[:START] + b"\xff" * 4 + c[START + 4 :]),
        "states 4,294,967,295 variables",
    ),
    "unknown dtype": (
        with_bytes(lambda content: re.sub(rb"(num_heads\0\0).", b"\\1\x63", content, count=1, flags=re.DOTALL)),
        "num_heads has the unknown dtype 99",
    ),
    "size": (
        with_bytes(lambda content: re.sub(rb"(num_heads\0\0).", b"\\1\0", content, count=1, flags=re.DOTALL)),
        "bytes, but its shape is [] of float32",
    ),
    "name": (with_bytes(lambda content: content.replace(b"num_heads", b"num_hea\xff\xff")), "is not UTF-8 text"),
    "variable twice": (
        with_bytes(lambda content: content.replace(b"decoder/layer_1/ffn", b"decoder/layer_0/ffn")),
        "contains decoder/layer_0/ffn/layer_norm/beta twice",
    ),
    "table of heads": (with_variables(encoder__num_heads=TABLE), "num_heads has shape [41, 8], but must be a single"),
    "half a head": (
        with_variables(encoder__num_heads=torch.tensor(2.5), decoder__num_heads=torch.tensor(2.5)),
        "num_heads is 2.5, but must be a positive integer",
    ),
    "gates": (
        with_variables(encoder__layer_0__ffn__linear_0_noact__weight=TABLE),
        "gated feed-forward layers are supported with silu only",
    ),
    "layer of alignments": (
        with_variables(decoder__alignment_layer=torch.tensor(-129, dtype=torch.int16)),
        "decoder/alignment_layer is -129, but the decoder has 2 layers",
    ),
    "heads of alignments": (
        with_variables(decoder__alignment_heads=torch.tensor(5, dtype=torch.int16)),
        "decoder/alignment_heads is 5, but a layer has 4 heads",
    ),
    "scale of queries": (
        with_variables(encoder__layer_0__self_attention__queries_scale=torch.tensor(0.5)),
        "queries_scale differs between layers",
    ),
    "positions": (
        with_variables(encoder__position_encodings__encodings=torch.zeros(0, 32)),
        "encodings has shape [0, 32], but must be a table",
    ),
    "no output": (with_variables(decoder__projection__weight=None), "variable decoder/projection/weight is missing"),
    "flag": (with_config(add_source_eos="yes"), "add_source_eos must be true or false, not 'yes'"),
    "encoding of the vocabulary": (
        lambda folder: (
            (folder / "shared_vocabulary.json").rename(folder / "shared_vocabulary.txt").write_bytes(b"a\xff")
        ),
        "shared_vocabulary.txt: damaged or not UTF-8 text (byte 2)",
    ),
    "scales of other rows": (
        with_variables(
            encoder__layer_0__ffn__linear_0__weight=torch.ones(48, 32, dtype=torch.int8),
            encoder__layer_0__ffn__linear_0__weight_scale=torch.ones(47),
        ),
        "weight_scale has shape [47], but the weight has [48, 32]",
    ),
    "no scale": (
        with_variables(encoder__layer_0__ffn__linear_0__weight=torch.ones(48, 32, dtype=torch.int8)),
        "linear_0/weight is quantised, but encoder/layer_0/ffn/linear_0/weight_scale is missing",
    ),
    "scale of zero": (
        with_variables(
            encoder__layer_0__ffn__linear_0__weight=torch.ones(48, 32, dtype=torch.int8),
            encoder__layer_0__ffn__linear_0__weight_scale=torch.arange(48.0),
        ),
        "linear_0/weight_scale contains values that are zero or not finite",
    ),
    "infinite scale": (
        with_variables(
            encoder__layer_0__ffn__linear_0__weight=torch.ones(48, 32, dtype=torch.int8),
            encoder__layer_0__ffn__linear_0__weight_scale=torch.full((48,), torch.inf),
        ),
        "linear_0/weight_scale contains values that are zero or not finite",
    ),
    "no encoder": (without_encoder, "has no encoder; regard imports encoder-decoder"),
    "relative positions": (
        with_variables(encoder__layer_0__self_attention__relative_position_keys=TABLE),
        "a model with relative positions",
    ),
    "shared keys": (with_variables(encoder__multi_query_attention=ONE), "shared by several heads"),
    "alibi": (with_variables(decoder__alibi=ONE), "linear biases"),
    "norm of embeddings": (with_variables(encoder__layernorm_embedding__gamma=TABLE[0]), "a norm after the embedding"),
    "activation": (with_variables(encoder__activation=ONE, decoder__activation=ONE), "GELU with tanh"),
    "different heads": (with_variables(encoder__num_heads=ONE), "num_heads is 1 in the encoder, but 4 in the decoder"),
    "one final norm": (
        with_variables(encoder__layer_norm__gamma=None, encoder__layer_norm__beta=None),
        "only the decoder ends with a norm",
    ),
    "unknown variable": (with_variables(encoder__layer_0__gate=TABLE), "unknown tensor encoder/layer_0/gate"),
    "missing variable": (
        with_variables(decoder__layer_1__ffn__linear_1__weight=None),
        "tensor decoder/layer_1/ffn/linear_1/weight is missing",
    ),
    "shape": (with_variables(decoder__layer_1__ffn__linear_1__weight=TABLE), "linear_1/weight has shape"),
    "NaN": (with_variables(encoder__layer_norm__beta=torch.full((32,), torch.nan)), "contains NaN"),
    "scale": (with_variables(encoder__scale_embeddings=TABLE), "scale_embeddings must be a flag"),
    "prefix": (with_config(decoder_start_token=None), "expects a target prefix"),
    "bos": (with_config(add_source_bos=True), "add_source_bos is true"),
    "eos": (with_config(eos_token=5), "eos_token must be a token, not 5"),
    "start": (with_config(decoder_start_token="<go>"), "no token <go>"),
    "eps": (with_config(layer_norm_epsilon="small"), "norm_eps"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json: no such file"),
    "no vocabulary": (
        lambda folder: (folder / "shared_vocabulary.json").unlink(),
        "no vocabulary; expected shared_vocabulary",
    ),
    "repeated token": (with_vocabulary(lambda tokens: [*tokens[:-1], tokens[5]]), "twice"),
    "short vocabulary": (with_vocabulary(lambda tokens: tokens[:-1]), "279 tokens, but the embedding 280 rows"),
    "vocabulary of numbers": (with_vocabulary(lambda tokens: [1] * len(tokens)), "must be a list of tokens"),
    "vocabulary map": (lambda folder: (folder / "vmap.txt").touch(), "vocabulary maps are not supported"),
    "tokenizer": (lambda folder: (folder / "sentencepiece.model").write_bytes(b"x" * 99), "not a SentencePiece model"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_unsupported_and_damaged_models_are_refused(what: str, model: Path, tmp_path: Path) -> None:
    damage, message = REFUSED[what]
    damage(model)
    with pytest.raises(UserError) as caught:
        import_model(model, tmp_path / "out")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_only_the_end_of_the_source_can_be_set(model: Path, tmp_path: Path) -> None:
    for changes, message in (
        ({"heads": 2}, "--set heads: the files describe the model completely except for source_end"),
        ({"source_end": 1}, "--set source_end=1: must be true or false"),
    ):
        with pytest.raises(UserError, match=message):
            read_engine(model, changes)
    with pytest.raises(UserError, match="omit --embedding: a model of CTranslate2 has none"):
        import_model(model, tmp_path / "out", embeddings={"source": "x"})


@pytest.mark.parametrize(
    ("values", "shape"), [(torch.zeros(1), [1] * 100), (torch.zeros(0), [0, 2**32 - 1, 2**32 - 1])]
)
def test_impossible_shapes_are_rejected(values: torch.Tensor, shape: list[int], tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    write_engine_file(path, {"x": values})
    stored, impossible = (struct.pack(f"<B{len(sizes)}I", len(sizes), *sizes) for sizes in (values.shape, shape))
    path.write_bytes(path.read_bytes().replace(b"x\0" + stored, b"x\0" + impossible))
    with pytest.raises(UserError, match="x has an impossible shape"):
        read_engine_file(path)


def test_aliases_cannot_multiply_memory(model: Path) -> None:
    tensors = read_engine_file(model / "model.bin").tensors
    name = "encoder/embeddings_0/weight"
    aliases = [(f"encoder/layer_{index}/ffn/linear_0/weight", name) for index in range(2000)]
    write_engine_file(model / "model.bin", tensors, aliases=aliases)
    with pytest.raises(UserError, match="aliases repeat variables"):
        read_engine_file(model / "model.bin")


def test_every_truncation_is_rejected(model: Path) -> None:
    content = (model / "model.bin").read_bytes()
    for size in (*range(0, 200, 7), *range(200, len(content), len(content) // 40), len(content) - 1):
        (model / "model.bin").write_bytes(content[:size])
        with pytest.raises(UserError, match="ends within"):
            read_engine_file(model / "model.bin")
