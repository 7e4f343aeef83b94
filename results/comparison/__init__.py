"""Runs beside each other: differences, whether they are real, and how they come about."""
