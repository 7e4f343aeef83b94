"""The packages import each other in one direction only, and start light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT: dict[str, set[str]] = {
    "allocators": set(),
    "profiles": set(),
    "results": set(),
    "harness": {"allocators", "profiles", "results"},
    "bench_cli": {"harness", "allocators", "profiles", "results"},
}
HEAVY = {
    "torch",
    "vllm",
    "pandas",
    "pyarrow",
    "scipy",
    "numpy",
    "matplotlib",
    "httpx",
    "prometheus_client",
}


def imported_names(source: str) -> set[str]:
    """Top-level names of all imports, those inside functions included."""
    return set(_names(ast.parse(source)))


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used in this project"
            yield (node.module or "").split(".")[0]


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, f"no source found for {package}"
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_run_one_way(package: str) -> None:
    """A package imports only itself and the packages below it."""
    for path in sources(package):
        ours = imported_names(path.read_text(encoding="utf-8")) & set(MAY_IMPORT)

        assert ours - {package} <= MAY_IMPORT[package], path


def test_allocators_need_nothing_but_numpy() -> None:
    """Block bookkeeping stands on the standard library and numpy alone."""
    allowed = sys.stdlib_module_names | {"allocators", "numpy"}
    for path in sources("allocators"):
        assert imported_names(path.read_text(encoding="utf-8")) <= allowed, path


def test_nobody_imports_click() -> None:
    """Typer carries its own command-line parser; click may not be installed."""
    for package in MAY_IMPORT:
        for path in sources(package):
            assert "click" not in imported_names(path.read_text("utf-8")), path


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["--version"]])
def test_help_starts_light(args: list[str]) -> None:
    """Neither help nor version loads a library that only a run needs."""
    code = (
        "import sys; sys.argv[0] = 'blockbench'\n"
        "from bench_cli.main import main\n"
        "try: main()\n"
        "finally: print(*{m.split('.')[0] for m in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=True
    )

    assert "run" in done.stdout or "blockbench" in done.stdout
    assert "typer" in done.stderr.split()
    assert HEAVY.isdisjoint(done.stderr.split())
