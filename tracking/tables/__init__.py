"""Every table of a report: what stands in it, and the forms that it is written in."""
