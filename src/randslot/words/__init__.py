"""Words of pages and queries: tokens, stems, languages, queries with phrases, and snippets. Imports nothing heavy."""
