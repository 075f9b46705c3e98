"""A study: every strategy with several seeds from one backbone, evaluated, compared and reported."""
