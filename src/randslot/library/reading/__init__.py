"""From files to vectors: processes that open pages, and readers that encode them here or on a Ray cluster."""
