"""`python -m randslot`, also for torchrun."""

from .cli import main

if __name__ == "__main__":
    main()
