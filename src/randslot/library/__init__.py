"""A folder of PDFs in, ranked pages out: files, their pages, a store of vectors, and searches in it."""
