"""The web pages: the console at `/` and the API reference at `/v1/docs`. They load nothing from other hosts."""
