"""Text, images and pairs of views: readers, tokenizers, stores, augmentation, batching."""
