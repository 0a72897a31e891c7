"""Plain values that every room shares. Imports nothing of mead."""
