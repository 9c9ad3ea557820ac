"""Fill the command reference from the command line itself, so that it cannot go stale."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from paceline.cli.main import app

_MARKER = "<!-- all commands -->"
_MARKUP = re.compile(r"\[/?(?:bold|dim)\]")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marker by one section per command."""
    if _MARKER not in markdown:
        return markdown
    sections = [_section(path, command) for path, command in _leaves(typer.main.get_command(app))]
    return markdown.replace(_MARKER, "\n\n".join(sections))


def _leaves(command: Any, path: str = "paceline") -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words that call it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, child in sorted(command.commands.items()):
        yield from _leaves(child, f"{path} {name}")


def _section(path: str, command: Any) -> str:
    arguments = [one for one in command.params if not one.opts[0].startswith("-")]
    options = [one for one in command.params if one.opts[0].startswith("-")]
    usage = " ".join([path, "[OPTIONS]", *(_argument(one) for one in arguments)])
    parts = [f"## {path}", command.help or "", f"```text\n{usage}\n```"]
    if arguments:
        parts.append(_table("argument", [(_argument(one), one) for one in arguments]))
    parts.append(_table("option", [(_names(one), one) for one in options]))
    examples = [line for line in (command.epilog or "").splitlines() if "$" in line]
    parts.append("```text\n" + "\n".join(_MARKUP.sub("", line).strip() for line in examples))
    return "\n\n".join(parts) + "\n```"


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def _names(parameter: Any) -> str:
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _table(kind: str, rows: list[tuple[str, Any]]) -> str:
    lines = [f"| {kind} | value | default | meaning |", "|---|---|---|---|"]
    for names, parameter in rows:
        lines.append(
            f"| `{names}` | {_value(parameter)} | {_default(parameter)} | {_help(parameter)} |"
        )
    return "\n".join(lines)


def _value(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return ""
    if parameter.metavar and parameter.opts[0].startswith("-"):
        return f"`{parameter.metavar}`"
    annotation = parameter.type_descriptor.annotation
    kind = {"int": "number", "float": "number", "str": "text", "Path": "path"}
    return kind.get(getattr(annotation, "__name__", ""), "text")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if getattr(parameter, "is_flag", False) or parameter.default in (None, ()):
        return ""
    return f"`{parameter.default}`"


def _help(parameter: Any) -> str:
    repeated = " May be repeated." if parameter.multiple else ""
    return (parameter.help or "").replace("|", "\\|") + repeated
