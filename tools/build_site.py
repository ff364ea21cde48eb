"""Build the site with Jupyter Book from executed chapters; every warning is an error."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PROGRESS = re.compile(r"(reading sources|writing output|highlighting module code)\.\.\. *\[ *(\d+)%\]")
REMOTE = re.compile(
    r"(?:https://|ssh://git@|git@)((?:github|gitlab)\.com)[:/]([\w.-]+)/([\w.-]+?)(?:\.git)?/?"
)
INSTALL_ID = "install-pfl-lite"  # of the cell that tools/add_install_cell.py writes
TROUBLE = re.compile(r"WARNING|ERROR|CRITICAL|Traceback|Exception|Error:")


def git(repository: Path, *words: str) -> str:
    """What git says; nothing where it fails."""
    return subprocess.run(
        ["git", "-C", str(repository), *words], capture_output=True, text=True
    ).stdout.strip()


def remote(repository: Path) -> str | None:
    """The public address of the repository's remote `origin`, https://HOST/OWNER/NAME, if it lies on GitHub or GitLab."""
    found = REMOTE.fullmatch(git(repository, "remote", "get-url", "origin"))
    return f"https://{found[1]}/{found[2]}/{found[3]}" if found else None


def configuration(source: Path, repository: Path = ROOT) -> dict[str, Any]:
    """_config.yml; where the repository has a public remote, with the buttons that open a chapter elsewhere.

    Binder reads environment.yml. Colab has no environment of the book, so its button needs chapters whose first cell
    installs the package (tools/add_install_cell.py), and a repository on GitHub.
    """
    config: dict[str, Any] = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    # Sphinx would look for local extensions beside the file that this is written to.
    extensions = config["sphinx"]["local_extensions"]
    config["sphinx"]["local_extensions"] = {name: str(ROOT / folder) for name, folder in extensions.items()}
    if address := remote(repository):
        branch = git(repository, "branch", "--show-current") or "main"
        config["repository"] = {"url": address, "branch": branch, "path_to_book": "book"}
        buttons = config["launch_buttons"]
        buttons["binderhub_url"] = "https://mybinder.org"
        chapters = list(source.glob("*.ipynb"))
        installs = all(f'"id": "{INSTALL_ID}"' in chapter.read_text(encoding="utf-8") for chapter in chapters)
        if "github.com" in address and chapters and installs:
            buttons["colab_url"] = "https://colab.research.google.com"
    return config


def build(source: Path, output: Path, *, pages: str = "html") -> int:
    """Build the book in `source` into `output`, printing progress and each warning; return the exit code.

    `pages` is `html`, or `singlehtml` for the whole book on one page, intro.html.
    """
    started = time.perf_counter()
    source, output = source.resolve(), output.resolve()
    # Beside the output and always fresh: a build that re-used pages would not repeat their warnings.
    work = output.with_name(f".{output.name}-work")
    shutil.rmtree(work, ignore_errors=True)
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command += ["build", str(source), "--path-output", str(work), "--builder", pages]
    work.mkdir(parents=True)
    config = work / "_config.yml"
    config.write_text(yaml.safe_dump(configuration(source), sort_keys=False), encoding="utf-8")
    command += ["--config", str(config), "--toc", str(source / "_toc.yml")]
    command += ["-n", "-W", "--keep-going"]
    print(f"Building the site from {source}", flush=True)
    lines: list[str] = []
    shown = ("", 0)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            line = re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()
            lines.append(line)
            if TROUBLE.search(line):
                print(line, flush=True)
            elif (step := PROGRESS.search(line)) and (here := (step[1], int(step[2]) // 20)) != shown:
                shown = here
                print(f"  {step[1]}: {step[2]}%", flush=True)
    built = work / "_build" / pages
    first = "index.html" if pages == "html" else "intro.html"
    if process.returncode != 0 or not (built / first).is_file():
        if not any(TROUBLE.search(line) for line in lines):
            print("\n".join(lines[-20:]))
        print(f"The site could not be built from {source}: see the lines above.", flush=True)
        return process.returncode or 1
    shutil.rmtree(output, ignore_errors=True)
    shutil.move(built, output)
    shutil.rmtree(work)
    count = len(list(output.glob("*.html")))
    print(f"{count} pages in {time.perf_counter() - started:.0f} s: open {output / first}", flush=True)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=ROOT / "book", help="folder of the chapters")
    parser.add_argument("--output", type=Path, default=ROOT / "_build" / "site", help="folder of the site")
    arguments = parser.parse_args()
    sys.exit(build(arguments.source, arguments.output))
