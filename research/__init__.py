"""Research around RandSlot that is not part of the package: run from the checkout as `python -m research.NAME`."""
