"""Fits the small models of the router to the data, offline. Nothing of this is needed at run time."""
