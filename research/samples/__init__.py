"""Sample reports: synthetic pages with known facts and questions about them, from a seed. No download."""
