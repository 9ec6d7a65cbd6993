"""Benchmarks of our own engines against others, each a command of its own; not of quality."""
