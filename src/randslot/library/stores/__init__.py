"""Stores of pages: one small interface, with an engine behind it."""
