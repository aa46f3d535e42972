"""Leaves out rows that `cleansing.where` drops for certain while a source is read.

The exact filter follows.
"""
