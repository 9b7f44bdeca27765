"""The one error that is the user's to mend, and how other errors are quoted in its line."""


class BadInput(ValueError):
    """Input that cannot be used; the message names the thing, the number and the remedy in one line.

    Command lines turn it into that line and exit code 2. Every other exception is a bug of ours.
    """


def first_line(error: Exception) -> str:
    """What an error says, cut to one line."""
    return (str(error).splitlines() or [""])[0]
