"""Compile studies for chips that this machine lacks, and count what the programs move, compute and launch."""
