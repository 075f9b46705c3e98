"""Retrievers for frameworks: a file each, which imports its framework. Nothing else imports these files."""
