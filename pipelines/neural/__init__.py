"""The vectors of the tokens of many texts; what models share else is in `models`."""
