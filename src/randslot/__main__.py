"""`python -m randslot`, which is also what torchrun starts."""

from .cli import main

if __name__ == "__main__":
    main()
