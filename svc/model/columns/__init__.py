"""Columns of features: how texts and vectors become places of an encoded row."""
