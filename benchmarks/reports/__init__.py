"""Writers of the tables in README.md and docs/*.md."""
