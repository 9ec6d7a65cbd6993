"""What is checked before a run spends money, and after its first questions."""
