"""Queries, candidates and filters, exact top-k selection, and the rules that rerank a page."""
