"""OptunaSearch; optuna itself is imported when the first one is made."""
