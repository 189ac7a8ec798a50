"""Hold one rule per file; each is `(Draft) -> None` over in-memory data and knows no other rule."""
