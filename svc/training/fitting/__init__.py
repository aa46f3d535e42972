"""Train models with the parameters of a trial, and convert them to scorers of svc.model."""
