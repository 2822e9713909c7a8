"""Entry point of `python -m jaxattn`, which is the same as the command `jaxattn`."""

from jaxattn.lab.cli import main

if __name__ == "__main__":
    main()
