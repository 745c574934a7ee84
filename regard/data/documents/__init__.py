"""Documents: the text of files such as subtitles, Markdown and Word, and the same files with the text translated.

A format parses a file into segments (text with markup in it, and the part of the file that a translation replaces) and
writes the file again with the translations; what no segment covers stays as it is, byte by byte.
"""
