"""`python -m regard.cli`."""

from regard.cli import main

main()
