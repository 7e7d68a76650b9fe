"""Count what the design's table compares, in any tree: `python docs/tools/count.py [TREE ...]`.

Of the wheel (`src/rhobust`): Python files, lines, and class names that are defined more than once. Of the wheel and of
`reproduction/`: places that declare the options of the attack evaluation (classes, functions and dictionaries that name
all of a few), and readers of records (modules and packages that count the outcomes of attacks in a record's rows).
"""

import ast
import sys
from collections import Counter
from pathlib import Path

OPTIONS = {"attack", "radii", "votes", "probe"}
"""Options that only the attack evaluation has together."""
WHEEL = "src/rhobust"
OUTCOME = "broken"
"""Field that only rows of attacks have."""


def modules(tree: Path, *folders: str) -> dict[str, ast.Module]:
    """The modules in these folders of a tree, by path, parsed."""
    paths = sorted(path for folder in folders for path in (tree / folder).rglob("*.py"))
    return {path.relative_to(tree).as_posix().removeprefix(f"{WHEEL}/"): ast.parse(path.read_text()) for path in paths}


def lines(tree: Path) -> int:
    """Lines of all Python files of the wheel."""
    return sum(len(path.read_text().splitlines()) for path in (tree / WHEEL).rglob("*.py"))


def collisions(parsed: dict[str, ast.Module]) -> list[str]:
    """Class names that are defined more than once."""
    names = Counter(
        node.name for module in parsed.values() for node in ast.walk(module) if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, times in names.items() if times > 1)


def declarations(parsed: dict[str, ast.Module]) -> list[str]:
    """Places that name the options of the attack evaluation."""
    found = []
    for path, module in parsed.items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                names = {
                    one.target.id
                    for one in node.body
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
                }
                place = node.name
            elif isinstance(node, ast.FunctionDef):
                names = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
                place = node.name
            elif isinstance(node, ast.Dict):
                names = {key.value for key in node.keys if isinstance(key, ast.Constant)}
                place = "dictionary"
            else:
                continue
            if names >= OPTIONS:
                found.append(f"{path}:{node.lineno} {place}")
    return found


def readers(parsed: dict[str, ast.Module]) -> list[str]:
    """Modules that take the rows of a record and count an attack's outcomes in them."""
    found = []
    for path, module in parsed.items():
        nodes = list(ast.walk(module))
        rows = any(
            isinstance(node, ast.Attribute) and node.attr == "rows" and not _is_self(node.value) for node in nodes
        )
        if rows and any(_takes(node, OUTCOME) for node in nodes):
            found.append(path)
    return found


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _takes(node: ast.AST, key: str) -> bool:
    taken = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    return taken and isinstance(node.slice, ast.Constant) and node.slice.value == key


def count(tree: Path) -> dict[str, int]:
    """All counts of a tree."""
    wheel, parsed = modules(tree, WHEEL), modules(tree, WHEEL, "reproduction")
    reading = readers(parsed)
    return {
        "Python files in the wheel": len(wheel),
        "lines in the wheel": lines(tree),
        "class names defined more than once": len(collisions(wheel)),
        "declarations of the attack evaluation's options": len(declarations(parsed)),
        "modules that count outcomes in the rows of attack records": len(reading),
        "packages that do": len({path.split("/")[0] for path in reading}),
    }


def main() -> None:
    """Print one row per count and one column per tree."""
    trees = [Path(one) for one in sys.argv[1:] if one != "-v"] or [Path(__file__).resolve().parents[2]]
    counts = [count(tree) for tree in trees]
    for name in counts[0]:
        print(f"| {name} | {' | '.join(f'{one[name]:,}' for one in counts)} |")
    if "-v" in sys.argv[1:]:
        for tree in trees:
            parsed = modules(tree, WHEEL, "reproduction")
            print(*collisions(modules(tree, WHEEL)), "", *declarations(parsed), "", *readers(parsed), sep="\n")


if __name__ == "__main__":
    main()
