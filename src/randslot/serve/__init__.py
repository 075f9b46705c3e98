"""The web page and the API: a library in a browser."""
