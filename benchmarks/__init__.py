"""Measurements: speed (`python -m benchmarks`) and quality (`python -m benchmarks.quality`)."""
