"""Scoring how far documents meet requirements: scorers, and locators of their evidence."""
