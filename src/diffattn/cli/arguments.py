"""What the verbs share: leading words, flags that decide which options exist, and tyro for the rest."""

import difflib
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any


def parse(target: Callable[..., Any], argv: list[str], verb: str, **options: Any) -> Any:
    """Parse argv into target's arguments (dotted for nested configs) and call it; mistakes exit with status 2."""
    import tyro

    return tyro.cli(target, args=argv, prog=f"diffattn {verb}", registry=_empty_as_none(), **options)


def _empty_as_none() -> Any:
    """The rules of tyro, but that the help tells a default without any words as "none"."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    registry, asking = ConstructorRegistry(), False

    @registry.primitive_rule
    def words(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        nonlocal asking
        if asking or kind.type_origin is not tuple:
            return None
        asking = True
        own = ConstructorRegistry.get_primitive_spec(kind)
        asking = False
        if not isinstance(own, PrimitiveConstructorSpec):
            return None
        return replace(own, str_from_instance=lambda value: own.str_from_instance(value) or ["none"])

    return registry


def first(argv: list[str], verb: str, what: str, listing: str) -> tuple[str, list[str]]:
    """Takes the leading word of a verb (a recipe, a folder); without one it prints what there is to choose from."""
    if argv and not argv[0].startswith("-"):
        return argv[0], argv[1:]
    if argv and argv[0] in ("-h", "--help"):
        print(
            f"usage: diffattn {verb} {what} [OPTIONS]        diffattn {verb} NAME --help tells the options\n\n{listing}"
        )
        raise SystemExit(0)
    raise ValueError(f"`diffattn {verb}` needs {what} first\n{listing}")


def take(argv: list[str], *flags: str) -> tuple[list[str], dict[str, str | None]]:
    """Takes flags that decide which options exist out of argv, before the options themselves are parsed."""
    # --flag=value is as good as --flag value.
    rest = [part for word in argv for part in (word.split("=", 1) if word.split("=", 1)[0] in flags else [word])]
    found: dict[str, str | None] = dict.fromkeys(flags)
    for flag in flags:
        if flag in rest:
            at = rest.index(flag)
            if at + 1 >= len(rest):
                raise ValueError(f"{flag} needs a value")
            found[flag] = rest[at + 1]
            del rest[at : at + 2]
    return rest, found


def take_each(argv: list[str], flag: str) -> tuple[list[str], list[str]]:
    """Takes a flag that may be repeated out of argv, with every value it is given."""
    values: list[str] = []
    while True:
        argv, found = take(argv, flag)
        value = found[flag]
        if value is None:
            return argv, values
        values.append(value)


def take_words(argv: list[str], flag: str, belongs: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Takes a flag and the words behind it out of argv, up to the next option or a word that does not belong."""
    # --flag=word is as good as --flag word.
    argv = [part for word in argv for part in (word.split("=", 1) if word.startswith(f"{flag}=") else [word])]
    if flag not in argv:
        return argv, []
    first = argv.index(flag) + 1
    last = first
    while last < len(argv) and not argv[last].startswith("-") and belongs(argv[last]):
        last += 1
    if last == first:
        raise ValueError(f"{flag} needs a value")
    return argv[: first - 1] + argv[last:], argv[first:last]


def load_plugins(argv: list[str]) -> list[str]:
    """Loads what every --plugin names, a .py file or package.module, and gives the other arguments."""
    rest, plugins = take_each(argv, "--plugin")
    if plugins:
        from diffattn.variants import load_plugin

        for plugin in plugins:
            load_plugin(plugin)
    return rest


def nearest(word: str, known: list[str]) -> str:
    """Give ", did you mean ...?" where a known word is close, else nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def command(verb: str, argv: list[str]) -> str:
    """Write a call as it would be typed, for reports."""
    return shlex.join(["diffattn", verb, *argv])
