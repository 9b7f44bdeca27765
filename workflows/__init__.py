"""What to run: plain Python that turns a request into steps of the core and hands results to tracking."""
