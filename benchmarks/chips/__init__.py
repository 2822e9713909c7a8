"""Compile studies for chips that this machine lacks, and count memory traffic, operations and launches."""
