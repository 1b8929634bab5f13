"""The documents, tried: each block of docs/*.md is run, or parsed where it needs what is not here; links followed.

    python -m tests.lab.documents [PAGE …]      start, or docs/start.md; none: all, README, the built site's links

The ```bash and ```python blocks of a page run in order in one folder, empty at first. A line right before a block
says otherwise: `<!-- file: NAME -->`, it is written to that file; `<!-- needs: WORDS -->`, it is not run here. Of all
blocks, run or not, every command line of feedline's is parsed against its options, and Python is compiled and its
imports of feedline looked up. ```toml is parsed, ```text only shown. Blocks without a language (README's) are command
lines.
"""

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SITE = DOCS / "_build"
TIMEOUT_S = 1800
SHOWN_LINES = 40

BLOCK = re.compile(
    r"(?P<said>(?:^ *<!--[^\n]*-->\n)*)^(?P<indent> *)(?P<fence>`{3,})(?P<language>[^\s`]*)[^\n`]*\n(?P<text>.*?)"
    r"^ *(?P=fence)`* *$",
    re.MULTILINE | re.DOTALL,
)
SAID = re.compile(r"<!-- (file|needs): (.+?) -->")
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
ERRORS_TOO = re.compile(r"(?<=\s)2>")
SEPARATORS = set("();|&\n")
BEFORE_A_COMMAND = {"then", "do", "else", "if", "while", "time", "!", "{"}
GLOBAL = {"--debug", "--version", "--help", "-h"}


def pages() -> list[Path]:
    return [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]


# --- reading ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Block:
    line: int
    """Of its fence, from 1."""
    language: str
    text: str
    file: str = ""
    needs: str = ""


def blocks(markdown: str) -> list[Block]:
    found: list[Block] = []
    for match in BLOCK.finditer(markdown):
        line = markdown.count("\n", 0, match.start("indent")) + 1
        text = textwrap.dedent(match["text"])
        found.append(Block(line=line, language=match["language"], text=text, **dict(SAID.findall(match["said"]))))
    return found


def commands(shell: str) -> list[list[str]]:
    """The words of each simple command, without comments, settings of the environment before it, and redirections."""
    text = ERRORS_TOO.sub(">", COMMENT.sub("", shell).replace("\\\n", " "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    found: list[list[str]] = [[]]
    to_a_file = False
    for word in lexer:
        if word and set(word) <= SEPARATORS:
            found.append([])
        elif word and set(word) <= {"<", ">", "&"}:
            to_a_file = True
        elif to_a_file or (not found[-1] and (word in BEFORE_A_COMMAND or re.match(r"\w+=", word))):
            to_a_file = False
        else:
            found[-1].append(word)
    return [words for words in found if words]


def feedline_words(words: Sequence[str]) -> list[str] | None:
    """Of one command, what stands behind `feedline`; None where it starts something else. The module that torchrun
    and kernprof start is `feedline train`; spark-submit's file is the command line."""
    for number, word in enumerate(words):
        if (Path(word).name == "feedline" and not number) or word.endswith("cli/submit.py"):
            return [*words[number + 1 :]]
    for option, module in pairwise(words):
        if option == "-m" and module in ("feedline.train.main", "feedline.cli.main"):
            behind = [*words[words.index(module) + 1 :]]
            return ["train", *behind] if module == "feedline.train.main" else behind
    return None


def relative_links(markdown: str) -> list[str]:
    """Files that it links to, without the place inside them."""
    targets = LINK.findall(BLOCK.sub("", markdown))
    return [path for target in targets if (path := target.partition("#")[0]) and "://" not in target]


# --- checking without running -------------------------------------------------------------------------


def complaints(block: Block) -> list[str]:
    """What is wrong with a block, whether or not it is run."""
    if block.language == "python":
        return python_complaints(block.text)
    if block.language == "toml":
        try:
            tomllib.loads(block.text)
        except tomllib.TOMLDecodeError as error:
            return [f"no TOML: {error}"]
    if block.language not in ("bash", ""):
        return []
    try:
        found = commands(block.text)
    except ValueError as error:  # a quote without its end
        return [str(error)]
    return [said for words in found if (said := command_complaint(words))]


def command_complaint(words: Sequence[str]) -> str:
    """Where it starts feedline: what its options say of the words; nothing is carried out. "" where they fit."""
    for option, module in pairwise(words):
        if option == "-m" and module.startswith(("feedline.", "tests.")) and not module.endswith("NAME"):
            inside = module.removeprefix("feedline.").split(".")
            if not ROOT.joinpath(*inside).with_suffix(".py").exists():
                return f"there is no module {module}"
    asked = feedline_words(words)
    if asked is None:
        return ""
    while asked and asked[0] in GLOBAL:
        asked = asked[1:]
    return unfit(asked) if asked else ""


def unfit(words: Sequence[str]) -> str:
    import typer

    from feedline.cli.main import WrongUse, app
    from feedline.cli.slurm import check_words
    from feedline.pipeline.base.errors import UsageError

    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    name, *rest = words
    if name not in verbs:
        return f"feedline has no verb {name!r}"
    for parameter in verbs[name].params:
        parameter.callback = None  # they read files
    try:
        context = verbs[name].make_context(f"feedline {name}", rest)
    except typer.Exit:  # --help
        return ""
    except WrongUse as error:
        return f"feedline {shlex.join(words)}: {error.format_message()}"  # type: ignore[attr-defined]
    if name == "slurm":
        try:
            check_words(context.params["array"] or "train", [context.params["dataset"], *context.args])
        except UsageError as error:
            return f"feedline {shlex.join(words)}: {error}"
    return ""


def python_complaints(text: str) -> list[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    return [
        f"there is no feedline.{module}: {name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "feedline"
        for module in [(node.module or "").partition(".")[2]]
        for name in [alias.name for alias in node.names]
        if name not in names_in(module)
    ]


def names_in(module: str) -> set[str]:
    """What may be imported from one of our modules or folders, by its source."""
    place = ROOT.joinpath(*module.split("."))
    if place.is_dir():
        return {path.stem for path in place.iterdir()}
    if not place.with_suffix(".py").exists():
        return set()
    names = set[str]()
    for node in ast.parse(place.with_suffix(".py").read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name for alias in aliases}
            case ast.Assign() | ast.AnnAssign():
                names |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            case _:
                pass
    return names


# --- running ------------------------------------------------------------------------------------------


def run_page(page: Path, folder: Path) -> bool:
    """Whether all of its blocks are right. Those behind one that fails are not run: they may need it."""
    right = True
    for block in blocks(page.read_text()):
        where = f"{page.name}:{block.line}"
        for said in complaints(block):
            print(f"{where}  {said}")
            right = False
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language in ("bash", "python") and block.needs:
            print(f"{where}  not run: needs {block.needs}")
        elif block.language in ("bash", "python") and right:
            right = run_block(block, folder, where)
    return right


def run_block(block: Block, folder: Path, where: str) -> bool:
    command = ["bash", "-eu", "-c", block.text]  # no pipefail: `… | head` ends what is before it
    if block.language == "python":
        script = folder / f"block_{block.line}.py"
        script.write_text(block.text)
        command = [sys.executable, script.name]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | {"PATH": path}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            status: int | str = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = f"none after {TIMEOUT_S} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        print(
            f"{where}  {'ok' if status == 0 else f'status {status}'}, {time.monotonic() - began_s:.1f} s", flush=True
        )
        if status != 0:
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]
            print(textwrap.indent("\n".join(lines), "    "))
    return status == 0


# --- the built site -----------------------------------------------------------------------------------


@dataclass
class Html(HTMLParser):
    """What a page offers and asks for."""

    anchors: set[str] = field(default_factory=set[str])
    links: list[str] = field(default_factory=list[str])
    """Where a reader may go."""
    loads: list[str] = field(default_factory=list[str])
    """What a browser fetches by itself."""
    _style: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._style = tag == "style"
        for name, value in ((name, value or "") for name, value in attrs):
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name == "href":
                (self.links if tag in ("a", "area") else self.loads).append(value)
            elif name in ("src", "poster", "data"):
                self.loads.append(value)
            elif name == "srcset":
                self.loads += [one.split()[0] for one in value.split(",") if one.strip()]
            elif name == "style":
                self.loads += loaded_by_css(value)

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loads += loaded_by_css(data)

    def handle_endtag(self, tag: str) -> None:
        self._style = False


def loaded_by_css(text: str) -> list[str]:
    found = re.findall(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""", text)
    return [first or second for first, second in found]


def link_complaints(site: Path) -> list[str]:
    """Local links and anchors that lead nowhere, and whatever is loaded from another host."""
    read: dict[Path, Html] = {}
    for path in sorted(site.rglob("*.html")):
        read[path.resolve()] = html = Html()
        html.feed(path.read_text())
    anchors = defaultdict(set[str], {path: html.anchors for path, html in read.items()})
    asked: list[tuple[Path, str, bool]] = []
    for path, html in read.items():
        asked += [(path, url, False) for url in html.links] + [(path, url, True) for url in html.loads]
    for path in sorted(site.rglob("*.css")):
        asked += [(path.resolve(), url, True) for url in loaded_by_css(path.read_text())]
    return [
        f"{path.relative_to(site.resolve())}: {url}: {said}"
        for path, url, loaded in asked
        if (said := url_complaint(path, url, anchors, loaded=loaded))
    ]


def url_complaint(page: Path, url: str, anchors: dict[Path, set[str]], *, loaded: bool) -> str:
    parts = urlsplit(url)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return "loaded from elsewhere" if loaded else ""
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.exists():
        return "no such file"
    known = not parts.fragment or target.suffix != ".html" or unquote(parts.fragment) in anchors[target]
    return "" if known else "no such place in it"


def page_of(word: str) -> Path:
    found = [page for page in pages() if Path(word).stem == page.stem]
    return found[0] if found else sys.exit(f"{word}: there is no such page")


def main(words: Sequence[str]) -> int:
    chosen = [*map(page_of, words)] or pages()
    wrong: list[str] = []
    for page in chosen:
        if page.parent == DOCS:
            with tempfile.TemporaryDirectory(prefix=f"feedline-{page.stem}-") as folder:
                wrong += [] if run_page(page, Path(folder)) else [page.name]
        else:
            said = [f"{page.name}:{one.line}  {what}" for one in blocks(page.read_text()) for what in complaints(one)]
            print("\n".join(said) or f"{page.name}  ok")
            wrong += [page.name] if said else []
    if not words:
        if not (SITE / "index.html").exists():
            sys.exit(f"{SITE} has no site: make docs")
        links = link_complaints(SITE)
        print("\n".join(links) or "links  ok")
        wrong += ["links"] if links else []
    print(f"wrong: {', '.join(wrong)}" if wrong else "all right")
    return 1 if wrong else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that no block is left behind
    sys.exit(main(sys.argv[1:]))
