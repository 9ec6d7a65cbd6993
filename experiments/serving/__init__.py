"""What `soundingline serve` is made of: sessions over one pipeline, and the doors that lead to
them.

Nothing here knows Hydra. `service` holds sessions and runs searches in threads; `recording` hands
out questions and writes trajectories; the other files are doors, one for each protocol.
"""
