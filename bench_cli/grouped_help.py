"""Help of a command with many options, under headings."""

from typing import Any

from typer.core import TyperCommand


class GroupedCommand(TyperCommand):
    """A command whose options stand under the heading that each was given.

    Those without one come first: they are the command's own. Typer shows headings, its
    ``rich_help_panel``, in tables alone, and those cut long flags short.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options, a section a heading."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_heading(parameter), []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _heading(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return parameter.rich_help_panel or "Options"
