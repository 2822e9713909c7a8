"""What version 0.3 moved: old names, and where they are now."""

# Commands and options of the command line that are gone.
COMMANDS = {
    "bench": "a script of the repository: python benchmarks/bench.py --out FILE",
    "cite": "a page of the documentation: docs/howto/cite.md, with BibTeX entries in docs/howto/jaxattn.bib",
    "plan --target": "a script of the repository: python benchmarks/chips/plan.py SWEEP --target CHIP",
}
