"""The documents say what is: every command line, import and link in them. Nothing of theirs is run here."""

from pathlib import Path

import pytest

from tests.lab.documents import (
    Block,
    blocks,
    commands,
    complaints,
    feedline_words,
    link_complaints,
    pages,
    relative_links,
    run_page,
)

by_page = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)


@by_page
def test_what_a_page_shows_fits_the_code(page: Path) -> None:
    said = [f"{page.name}:{block.line}  {what}" for block in blocks(page.read_text()) for what in complaints(block)]
    assert not said


@by_page
def test_a_block_says_what_it_is(page: Path) -> None:
    known = {"bash", "python", "toml", "text", *([""] if page.name == "README.md" else [])}
    assert {one.language for one in blocks(page.read_text()) if not one.language.startswith("{")} <= known


@by_page
def test_links_to_files_that_are_there(page: Path) -> None:
    assert not [link for link in relative_links(page.read_text()) if not (page.parent / link).exists()]


# --- the reading itself -------------------------------------------------------------------------------


def test_blocks_and_what_is_said_before_them() -> None:
    text = """
```bash
feedline doctor
```

<!-- file: space.toml -->
```toml
[lr]
```
1. in a list
   <!-- needs: four GPUs -->
   ```bash
   nvidia-smi
   ```
"""
    assert blocks(text) == [
        Block(line=2, language="bash", text="feedline doctor\n"),
        Block(line=7, language="toml", text="[lr]\n", file="space.toml"),
        Block(line=12, language="bash", text="nvidia-smi\n", needs="four GPUs"),
    ]


@pytest.mark.parametrize(
    ("shell", "found"),
    [
        ("feedline doctor OUT   # what is 'here'", [["doctor", "OUT"]]),
        ("feedline train OUT \\\n  --epochs 1", [["train", "OUT", "--epochs", "1"]]),
        ("A=1 B='x y' env/bin/feedline doctor", [["doctor"]]),
        ("cd x && feedline doctor | tee log; feedline plan > plan.txt 2>&1", [["doctor"], ["plan"]]),
        ("feedline profile --fail-if 'wait>10%' a.py", [["profile", "--fail-if", "wait>10%", "a.py"]]),
        ("feedline prepare A B --conf spark.archives=env.tar.gz#env",
         [["prepare", "A", "B", "--conf", "spark.archives=env.tar.gz#env"]]),
        ("torchrun --nproc-per-node 4 -m feedline.train.main OUT --sync-bn", [["train", "OUT", "--sync-bn"]]),
        ("spark-submit --master yarn cli/submit.py prepare A B", [["prepare", "A", "B"]]),
        ("for n in 1 2; do\n  feedline doctor\ndone", [["doctor"]]),
        ("pip install feedline\necho feedline doctor", []),
    ],
)  # fmt: skip
def test_commands_of_a_shell(shell: str, found: list[list[str]]) -> None:
    assert [asked for words in commands(shell) if (asked := feedline_words(words)) is not None] == found


@pytest.mark.parametrize(
    ("language", "text", "said"),
    [
        ("bash", "feedline train OUT --epochs 3", ""),
        ("bash", "feedline train OUT --config tuned.json", ""),
        ("bash", "feedline profile --steps 9 torchrun --nproc-per-node 4 train.py", ""),
        ("bash", "feedline doctor --help", ""),
        ("bash", "feedline train", "Missing argument"),
        ("bash", "feedline train OUT --epoch-count 3", "No such option"),
        ("bash", "feedline train OUT --epochs many", "many"),
        ("bash", "feedline trian OUT", "no verb"),
        ("bash", "feedline slurm OUT --lr 0.1", ""),
        ("bash", "feedline slurm OUT --learning-rate 0.1", "No such option"),
        ("bash", "torchrun -m feedline.train.main OUT --none", "No such option"),
        ("bash", "python -m feedline.benchmarks.experiments.kernel", ""),
        ("bash", "python -m feedline.benchmarks.experiments.colonel", "no module"),
        ("bash", "echo 'without an end", "No closing quotation"),
        ("python", "from feedline.pipeline.loader import Loader", ""),
        ("python", "from feedline.pipeline.loader import Loder", "Loder"),
        ("python", "from feedline.pipelines.loader import Loader", "Loader"),
        ("python", "for x in", "line 1"),
        ("toml", "[lr\n", "no TOML"),
        ("text", "feedline nonsense", ""),
    ],
)
def test_what_does_not_fit_is_named(language: str, text: str, said: str) -> None:
    found = complaints(Block(line=1, language=language, text=text))
    assert (said in found[0]) if said else not found


def test_a_page_is_run_in_one_folder(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "folder"
    folder.mkdir()
    page.write_text("""
<!-- file: said.txt -->
```text
so
```
```bash
test "$(cat said.txt)" = so
```
```python
open("done", "w").close()
```
<!-- needs: a miracle -->
```bash
touch miracle
```
""")
    assert run_page(page, folder)
    assert (folder / "done").exists()
    assert not (folder / "miracle").exists()
    page.write_text("```bash\nfalse\ntrue\n```\n```bash\ntouch behind\n```\n")
    assert not run_page(page, folder)
    assert not (folder / "behind").exists()


def test_links_of_a_site(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("""
        <h1 id="top">A</h1> <a href="b.html#there">b</a> <a href="#top">up</a> <a href="https://example.org">out</a>
        <a href="b.html#nowhere">b</a> <a href="c.html">c</a> <script src="https://example.org/x.js"></script>
        <img src="gone.png"> <style>body { background: url(//example.org/x.png) }</style>
    """)
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    (tmp_path / "x.css").write_text('@import "https://example.org/font.css"; a { background: url("data:,x") }')
    assert link_complaints(tmp_path) == [
        "a.html: b.html#nowhere: no such place in it",
        "a.html: c.html: no such file",
        "a.html: https://example.org/x.js: loaded from elsewhere",
        "a.html: gone.png: no such file",
        "a.html: //example.org/x.png: loaded from elsewhere",
        "x.css: https://example.org/font.css: loaded from elsewhere",
    ]
