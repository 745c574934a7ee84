"""Image sets, augmentation and rendered scenes; this package knows no model."""
