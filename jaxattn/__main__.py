"""`python -m jaxattn` is `jaxattn`."""

from jaxattn.lab.cli import main

if __name__ == "__main__":
    main()
