"""Labelled texts as data: file readers, tokeniser, vocabulary, and a cache of tokenised texts."""
