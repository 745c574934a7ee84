"""Classification as a family of runs: images in class folders in, a classifier out."""
