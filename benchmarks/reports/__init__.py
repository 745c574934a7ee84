"""What benchmarks/tables.py writes, by topic: each function makes the Markdown of one table of a page."""
