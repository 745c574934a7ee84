"""Put benchmarks/ on the import path, because its scripts import each other by module name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
