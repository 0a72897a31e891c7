"""Replays recorded scores and labels, to say how well the router decides: no model is called."""
