"""Leaves out rows that `cleansing.where` drops for certain while a source is read; the exact filter follows."""
