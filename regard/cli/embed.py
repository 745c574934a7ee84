"""`regard embed`: writes the embedding vectors of texts or images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.classify import FileCounter, image_arguments
from regard.cli.options import (
    Device,
    Images,
    Input,
    Key,
    Run,
    ShardOptions,
    add_shard_options,
    check_file_name,
    read_input,
    reject_options,
)
from regard.cli.shards import is_folder
from regard.console import LineProgress
from regard.errors import UserError
from regard.files import replace_text_file


@add_shard_options
def embed(
    run: Run,
    out: Annotated[
        Path,
        typer.Option(help="file for the vectors, .npy or .safetensors, replaced if it exists; for shards, a folder"),
    ],
    shards: ShardOptions,
    images: Images = None,
    source: Input = None,
    key: Key = None,
    pool: Annotated[str, typer.Option(help="mean: one vector per line; none: one per token")] = "mean",
    device: Device = "auto",
) -> None:
    """Write embedding vectors of the lines of a file, of standard input or of a folder of shards, or of images."""
    from regard.models.folder import check_input_type, find_model_folder, model_input_type
    from regard.ops.dispatch import choose_device
    from regard.pipelines.embedder import Embedder, check_embedding_file, embed_lines, save_arrays
    from regard.pipelines.translator import Translator

    if source is not None and is_folder(source):
        reject_options("a folder of shards", {"an image": images, "--pool none": pool != "mean"})
        _embed_shards(run, source, out, key or "source", device, shards)
        return
    shards.reject()
    check_file_name(out, "--out")
    reads = model_input_type(find_model_folder(run))
    if reads == "images":
        embed_images(run, images, out, device)
        return
    if reads == "pairs":
        check_input_type(find_model_folder(run), "images")
    if images:
        raise UserError(f"{run} is a text model; give its lines in --input")
    pooling = check_embedding_file(out, pool)
    lines, total = read_input(source, key)
    model = (Embedder if reads == "sentences" else Translator).load(run, device=choose_device(device))
    with LineProgress(total) as progress:
        arrays = embed_lines(model, lines, pooling, progress.advance)
    save_arrays(arrays, out)
    shapes = ", ".join(f"{name} {' × '.join(map(str, array.shape))}" for name, array in arrays.items())
    typer.echo(f"{out}: {shapes}")


def _embed_shards(run: Path, source: Path, out: Path, key: str, device: str, shards: ShardOptions) -> None:
    """Write an array of vectors for each shard of a folder."""
    from regard.cli.shards import fingerprints, open_run, run_job
    from regard.models.folder import find_model_folder, model_input_type
    from regard.pipelines.shard_jobs import EmbedJob

    if (reads := model_input_type(find_model_folder(run))) in ("images", "pairs"):
        raise UserError(f"{run}: reads {reads}, and shards hold text; give images as arguments, without --input")
    job = EmbedJob(run.absolute(), device, key)
    run_job(open_run("embed", source, out, {"models": fingerprints([run]), "key": key}), job, shards.executor(device))


def embed_images(run: Path, images: Sequence[str] | None, out: Path, device: str) -> None:
    """Write the feature vectors of images, and their paths to a text file with the same name."""
    import numpy as np

    from regard.ops.dispatch import choose_device
    from regard.pipelines.classifier import Classifier, find_images
    from regard.pipelines.embedder import check_embedding_file, save_arrays

    check_embedding_file(out, "mean")
    arguments = image_arguments(images)
    classifier = Classifier.load(run, device=choose_device(device))
    counter = FileCounter()
    results = list(counter.readable(classifier.map_files(find_images(arguments), classifier.features)))
    vectors = np.stack([vector for _, vector in results]) if results else classifier.embed([])
    save_arrays({"embeddings": vectors}, out)
    names = out.with_suffix(".txt")
    with replace_text_file(names) as file:
        file.writelines(f"{path}\n" for path, _ in results)
    typer.echo(f"{out}: embeddings {' × '.join(map(str, vectors.shape))}; their images are listed in {names}")
    counter.check()
