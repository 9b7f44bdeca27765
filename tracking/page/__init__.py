"""The report as one HTML file that needs nothing else."""

from tracking.page.document import write_page

__all__ = ["write_page"]
