"""Which torchtitan this package works with. Everything that depends on its version is imported here
and in the modules beside it; another version is told by name instead of failing somewhere inside."""

from __future__ import annotations

from importlib import metadata

from hansa.errors import Unfit

SUPPORTED = "torchtitan 0.3.x with torch 2.14 or later"


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split("+")[0].split(".")[:2]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)


def check(found: dict[str, str] | None = None) -> str:
    """The software in words, or `Unfit` with what was found and what would work."""
    versions = {} if found is None else found
    if found is None:
        for name in ("torchtitan", "torch"):
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                raise Unfit(
                    f"{name} is not installed here; hansa.torchtitan needs {SUPPORTED}"
                ) from None
    words = ", ".join(f"{name} {version}" for name, version in versions.items())
    if _numbers(versions["torchtitan"]) != (0, 3) or _numbers(versions["torch"]) < (2, 14):
        raise Unfit(
            f"found {words}; hansa.torchtitan needs {SUPPORTED}. Older versions have no --module: train "
            f"with hansa.Session in a loop of your own there"
        )
    return words
