"""Learned representations of text: learned sparse, single-vector and multi-vector retrieval.

What they share is the encoding of a corpus (`encoding`, `shards`); each retriever then keeps the
result in an index of its own. Nothing here imports torch before it is called.
"""
