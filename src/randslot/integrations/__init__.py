"""Retrievers for frameworks, one module each. Nothing else imports these modules."""
