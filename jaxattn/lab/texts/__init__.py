"""Labelled texts as data: file readers, tokeniser, vocabulary, and a cache for tokenised texts."""
