"""`regard demo`: from nothing to a model and a picture of its attention, in minutes on any machine."""
