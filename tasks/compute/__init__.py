"""What each kind of step computes."""
