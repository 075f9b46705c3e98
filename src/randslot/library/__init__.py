"""Libraries: index files, store their pages and vectors, and search them."""
