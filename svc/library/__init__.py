"""The Python interface, `import svc`: train, load, recommend and evaluate with DataFrames."""
