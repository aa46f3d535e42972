"""svc turns a recipe into a recommendation API: `svc train` writes one signed file, `svc serve` answers from it."""

__version__ = "2.1.0"
