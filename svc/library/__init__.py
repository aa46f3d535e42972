"""The functions of `import svc` besides the command line: train, load, recommend, evaluate, with pandas in and out."""
