"""The files of the web pages. Each has a row in the table of endpoints."""

from __future__ import annotations

SHARED = ("style.css", "icon.svg", "dom.js", "curl.js", "api.js")
CONSOLE = (
    "attempt.js",
    "features.js",
    "figures.js",
    "main.js",
    "narrow.js",
    "picker.js",
    "prometheus.js",
    "ranking.js",
    "recipes.js",
)
REFERENCE = ("reference.css", "reference.js", "snippets.js")
SWAGGER_UI = ("swagger-ui-bundle.js", "swagger-ui.css")
"""Swagger UI, which shows the reference (its origin is in swagger_ui/README.md)."""
