"""From files to vectors: processes that open pages, and readers that have them encoded here or on a Ray cluster."""
