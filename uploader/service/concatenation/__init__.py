"""Wholes that are made of parts: ordered, joined once those are complete, filled in the background, merged as any upload."""
