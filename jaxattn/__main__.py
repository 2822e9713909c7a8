"""Entry point of `python -m jaxattn`, which is equivalent to the `jaxattn` command."""

from jaxattn.lab.cli import main

if __name__ == "__main__":
    main()
