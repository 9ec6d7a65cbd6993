"""Vocabulary enrichment: phrases for queries and documents, the document-frequency filter, and the
pipeline stage. SIRA ("SuperIntelligent Retrieval Agent") is one configuration of it.
"""
