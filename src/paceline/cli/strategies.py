"""``paceline strategies``: what can be attached, raced and predicted, with its options."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli import frame


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(
        app, "strategies", example="paceline strategies\npaceline strategies daso --json"
    )(strategies)


def strategies(
    name: Annotated[str | None, typer.Argument(help="Show the options of this one.")] = None,
    json: frame.JsonFlag = False,
) -> None:
    """List the training strategies, or one strategy's options."""
    from rich.table import Table

    from paceline.strategies import strategy_class, strategy_names

    names = strategy_names() if name is None else [name]
    described = [_describe(one, strategy_class(one)) for one in names]
    if json:
        frame.print_json({"strategies": described})
        return
    if name is None:
        table = Table("strategy", "what it does", "options", title="strategies")
        for entry in described:
            options = ", ".join(option["name"] for option in entry["options"])
            table.add_row(entry["name"], entry["summary"], options or "–")
    else:
        table = Table("option", "default", "meaning", title=f"{name}: {described[0]['summary']}")
        for option in described[0]["options"]:
            table.add_row(option["name"], str(option["default"]), option["description"])
    frame.console().print(table)


def _describe(name: str, strategy: Any) -> dict[str, Any]:
    options = [
        {
            "name": key,
            "default": None if field.is_required() else field.default,
            "description": field.description or "",
        }
        for key, field in strategy.options_type.model_fields.items()
    ]
    return {"name": name, "summary": strategy.summary, "options": options}
