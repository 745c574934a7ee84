"""Evaluation: metrics with their signatures, reports with their conditions, comparisons, and benchmarks.

In reading order:

1. `metrics`: BLEU, chrF and others. `translation`: the systems that are evaluated, a model or a file of translations.
2. `report`: scores with the conditions under which they were computed. `comparison`: significance tests of two systems.
3. `classification`, `classification_plots` and `croco`: scores of image models.
4. `calibration`: whether confidences agree with how often translations are right.
5. `benchmark`: speed and memory of models (`regard bench`).
"""
