"""PyTerrier transformers and the factories that build them. Imports `toolkit` only."""
