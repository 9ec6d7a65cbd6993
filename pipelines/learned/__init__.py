"""Learned representations of text: learned sparse, single-vector and multi-vector retrieval.

A model is its retriever and the engine of its own index. Nothing here imports torch before it is
called.
"""
