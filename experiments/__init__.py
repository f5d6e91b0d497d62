"""Scripts, one for each question; run them with ``python -m experiments.NAME``."""
