"""Queries and rankings, filters, exact top-k selection, and the rules that rearrange a ranking."""
