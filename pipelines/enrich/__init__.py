"""Vocabulary enrichment: phrases for queries and documents, the filter that keeps the telling ones,
and the stage that searches with them. SIRA ("SuperIntelligent Retrieval Agent") is one
configuration of it.
"""
