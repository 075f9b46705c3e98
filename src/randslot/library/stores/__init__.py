"""Where pages are kept and searched: one small interface, with an engine behind it."""
