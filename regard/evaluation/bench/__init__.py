"""`regard bench`: what a model takes on this machine, in time and memory, beside what others take."""
