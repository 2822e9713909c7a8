"""Compile studies for accelerators that this machine lacks, and count traffic, operations and launches."""
