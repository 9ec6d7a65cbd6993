"""The lexical engine: analyzer, inverted index, BM25, query likelihood and feedback."""
