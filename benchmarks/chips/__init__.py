"""Compile studies for chips that this machine lacks, and count their traffic, operations and launches."""
