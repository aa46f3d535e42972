"""What `import svc` offers beside the command line: train, load, recommend and evaluate, with pandas in and out."""
