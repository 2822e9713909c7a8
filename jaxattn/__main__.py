"""Entry point for `python -m jaxattn`, equivalent to the `jaxattn` command."""

from jaxattn.lab.cli import main

if __name__ == "__main__":
    main()
