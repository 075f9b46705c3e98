"""What tests share: models, files, servers. No test imports from a conftest or from another test."""
