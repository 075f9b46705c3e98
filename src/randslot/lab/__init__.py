"""The laboratory: how well a model finds pages (evaluation), why (analysis), and how sure that is (study)."""
