"""Image sets, augmentation and rendered scenes; this package knows no model.

From image files to the input of a model:

- `sources`: where encoded images are stored. `folders`, `tables`, `tar` and `idx`: the formats, one module each.
- `image_sets`: labelled images in any of these formats, and their splits; `open_images` chooses the format.
- `preprocessing`: from an encoded image to a square of pixels.
- `image_store`: a set that was decoded once, on disk. `datasets`: its images as tensors, in batches.
- `augmentation`: random changes of a batch, made of `transforms`; `randaugment` is one of them.
"""
