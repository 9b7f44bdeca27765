"""The one error that is the user's to mend, and how other errors are quoted in its line."""


class BadInput(ValueError):
    """Input that cannot be used; the message names the thing, the number and the remedy in one line.

    Command lines turn it into that line and exit code 2. Every other exception is a bug of ours.
    """


class DiskFull(BadInput):
    """A file system, or a quota on it, has no room left."""


def first_line(error: BaseException) -> str:
    """What an error says, cut to one line."""
    return (str(error).splitlines() or [""])[0]


def printable(text: str) -> str:
    """A text on one line, with the code of every character that a terminal would obey or could not show."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
