"""Text analysis: tokens, stems, languages, query parsing, matching and snippets. Imports nothing heavy."""
