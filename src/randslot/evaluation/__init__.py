"""How well a model finds pages."""
