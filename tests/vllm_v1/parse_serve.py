"""What the installed ``vllm serve`` reads out of command lines, without starting.

``python parse_serve.py < COMMANDS`` takes a JSON list of lists of words, each from
``serve`` on, and prints a JSON list with the options of each, by vLLM's names; for one
that vLLM refuses, a text. ``flags`` prints all flags that it takes.
"""

import contextlib
import io
import json
import sys
from importlib import import_module
from typing import Any


def build() -> tuple[Any, Any]:
    """The parser of ``vllm``, as its ``main`` makes it, and that of ``vllm serve``."""
    parsers = import_module("vllm.utils.argparse_utils")
    parser = parsers.FlexibleArgumentParser(prog="vllm")
    subparsers = parser.add_subparsers(required=True, dest="subparser")
    serve = import_module("vllm.entrypoints.cli.serve")
    serve.ServeSubcommand().subparser_init(subparsers)
    return parser, subparsers.choices["serve"]


def parsed(parser: Any, words: list[str]) -> dict[str, Any] | str:
    """The options, or what was said of them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args = parser.parse_args(words)
    except SystemExit:
        return said.getvalue() or "refused"
    values = dict(vars(args))
    values["model"] = values.pop("model_tag", None) or values["model"]
    plain = (bool, int, float, str)
    return {name: value for name, value in values.items() if isinstance(value, plain)}


def main() -> None:
    """Print what is asked for, last on stdout: vLLM writes there when it loads."""
    parser, serve = build()
    if sys.argv[1:] == ["flags"]:
        found: Any = [flag for a in serve._actions for flag in a.option_strings]
    else:
        found = [parsed(parser, words) for words in json.load(sys.stdin)]
    print(f"\n{json.dumps(found)}")


if __name__ == "__main__":
    main()
