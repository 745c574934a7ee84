"""Text, images and pairs of views: readers, tokenizers, stores, augmentation, batching.

In reading order:

1. `text`, `images` and `two_view`: one package for each kind of data; their docstrings list their modules.
2. `batching`: the order of an epoch, and which rows form a batch.
3. `array_store`: arrays on disk, which token stores and image stores consist of.
4. `builtin`: the built-in corpus and images, which need no files.
5. `documents`: files such as DOCX, HTML and PO, whose text is translated in place.
"""
