"""Training: a recipe, pairs of query and page, a loss, a run."""
