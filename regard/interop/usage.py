"""The usage section in the README.md of an export: a Python program that runs the model without regard.

The programs are templates in `snippets/`; their placeholders are file names, languages and an example.
"""

from pathlib import Path
from string import Template

from regard.data.text.sentencepiece import SentencePieceTokenizer
from regard.data.text.tokenizer import JOINT_FILE, SOURCE_FILE, TARGET_FILE
from regard.interop.huggingface_translation import TARGET_TOKENIZER
from regard.models.nat import NATransformer
from regard.pipelines.translator import Translator

SNIPPETS = Path(__file__).with_name("snippets")
EXAMPLE = "I love apples"


def translation_usage(to: str, translator: Translator, folder: Path) -> str:
    """Return the section for a translator exported to `folder`; `to` is the name of the format."""
    vocabularies = translator.vocabularies
    source, target = (JOINT_FILE, JOINT_FILE) if vocabularies.joint else (SOURCE_FILE, TARGET_FILE)
    is_sentencepiece = isinstance(vocabularies.source, SentencePieceTokenizer)
    tokenizer = _fill(
        "tokenizer_sentencepiece" if is_sentencepiece else "tokenizer_bpe",
        source_tokenizer=source,
        target_tokenizer=target,
    )
    shared = (folder / "shared_vocabulary.json").exists()  # CTranslate2 merges equal vocabularies
    model, name, read = translator.model, to, ""
    if isinstance(model, NATransformer):
        name, read = f"{to}_one_pass", _fill(f"read_{model.config.length}")
    snippet = _fill(
        name,
        tokenizer=tokenizer,
        read=read,
        text=EXAMPLE,
        source_vocabulary="shared_vocabulary.json" if shared else "source_vocabulary.json",
        target_vocabulary="shared_vocabulary.json" if shared else "target_vocabulary.json",
        target_folder=TARGET_TOKENIZER if (folder / TARGET_TOKENIZER).exists() else ".",
        package=next((path.name for path in folder.glob("*.argosmodel")), ""),
        source_language=translator.languages[0],
        target_language=translator.languages[1],
    )
    return _section(snippet)


def classification_usage(to: str) -> str:
    """Return the section for an exported image classifier; `to` is the name of the format."""
    return _section(_fill(f"{to}_images", preprocessing=_fill("image_preprocessing")))


def _fill(name: str, **values: str) -> str:
    template = Template((SNIPPETS / f"{name}.txt").read_text(encoding="utf-8"))
    return template.substitute(values).strip()


def _section(snippet: str) -> str:
    return f"## Usage\n\nRun in this folder:\n\n```python\n{snippet}\n```"
