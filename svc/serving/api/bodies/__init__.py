"""Request and response bodies: limits, parsing, validation and schemas."""
