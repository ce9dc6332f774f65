"""Lines of each source file, by package. Ends with an error if a file of src/ is longer than the limit.

A long file is one that does too much: split it by what it owns, not by line.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tapetum"
WANTED = 300  # lines; longer ones are marked
LIMIT = 500


def main() -> int:
    packages: dict[str, dict[str, int]] = defaultdict(dict)
    for path in sorted(SOURCE.rglob("*.py")):
        inner = path.relative_to(SOURCE)
        package = inner.parts[0] if len(inner.parts) > 1 else "."
        packages[package]["/".join(inner.parts[1:]) or inner.name] = count_lines(path)
    for package, files in sorted(packages.items()):
        print(f"{package:<12} {sum(files.values()):>6} lines in {len(files)} files")
        for name, lines in sorted(files.items(), key=lambda item: -item[1]):
            mark = " <- too long" if lines > LIMIT else " <- long" if lines > WANTED else ""
            print(f"{lines:>11}  {name}{mark}")
    sizes = [lines for files in packages.values() for lines in files.values() if lines]
    tests = sum(count_lines(path) for path in (ROOT / "tests").rglob("*.py"))
    print(f"src: {sum(sizes)} lines in {len(sizes)} files, median {median(sizes):g}; tests: {tests} lines")
    num_too_long = sum(lines > LIMIT for lines in sizes)
    if num_too_long:
        print(f"{num_too_long} files of src/ are longer than {LIMIT} lines; split them by what they own")
    return 1 if num_too_long else 0


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    sys.exit(main())
