"""Sample reports: pages with known facts and questions about them, made from a seed. No download, no real company."""
