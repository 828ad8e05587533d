"""One kind of error for everything a user can mend, and the sentence it is told in."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(ValueError):
    """What is wrong, where, and what to do, in one sentence. The command line prints it and exits with code 2."""


class Busy(UserError):
    """Another process is training the run: it is left to that one."""


class Diverged(UserError):
    """A run has left the numbers: it ends without a record, the others of its study go on."""


class Lost(UserError):
    """The worker of a run died again and again: it ends without a record, the others of its study go on."""


def choose(what: str, name: str, allowed):
    """``allowed[name]`` (or ``name`` itself when ``allowed`` is not a mapping), or an error that lists the choices."""
    if name not in allowed:
        raise UserError(f"Unknown {what} {name!r}: choose one of {listing(allowed)}.")
    return allowed[name] if hasattr(allowed, "keys") else name


def listing(names: Iterable[str]) -> str:
    return ", ".join(map(str, names))
