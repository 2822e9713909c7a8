"""Labelled texts as corpora: files and tables, tokeniser, vocabulary, a cache of what was read."""
