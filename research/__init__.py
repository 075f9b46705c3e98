"""Research scripts outside the package; run them from the checkout as `python -m research.NAME`."""
