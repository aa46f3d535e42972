"""The pages for people: the console at `/` and the API reference at `/v1/docs`, without anything from elsewhere."""
