"""Measurements: speed and memory (`python -m benchmarks`), unknown epochs (`python -m benchmarks.epochs`)."""
