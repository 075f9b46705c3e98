"""A folder such as people have, 500 mixed files, and two weeks of changes in it, replayed while it is watched."""

from __future__ import annotations

import random
import shutil
import time
from email.message import EmailMessage
from pathlib import Path

import pytest

from contract.pdf import write_pdf
from randslot.library.library import Library
from randslot.library.sharing import SharedLibrary
from randslot.library.watch import Watch
from randslot.pages.convert import find_office

pytestmark = pytest.mark.nightly
KINDS = (".pdf", ".docx", ".xlsx", ".txt", ".md", ".html", ".eml", ".csv")


def write_file(file: Path, word: str) -> None:
    """Write a document of the kind that its name says, with a word that no other has."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = f"A note about the harbour, the ships and {word}."
    match file.suffix:
        case ".pdf":
            write_pdf(file, [[text], ["A second page about cranes."]])
        case ".docx":
            import docx

            document = docx.Document()
            document.add_paragraph(text)
            document.save(str(file))
        case ".xlsx":
            import openpyxl

            workbook = openpyxl.Workbook()
            workbook.active.append([text, 7])
            workbook.save(file)
        case ".eml":
            message = EmailMessage()
            message["Subject"], message["From"] = "Harbour", "a@example.com"
            message.set_content(text)
            file.write_bytes(bytes(message))
        case ".html":
            file.write_text(f"<title>Harbour</title><p>{text}")
        case _:
            file.write_text(text)


class Folder:
    """A folder, and the word of each file in it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.random = root, random.Random(seed)
        self.words: dict[Path, str] = {}
        self.num = 0

    def make_word(self) -> str:
        self.num += 1
        return "zq" + "".join("abcdefghij"[int(digit)] for digit in f"{self.num:05}")

    def add(self) -> None:
        place = self.random.choice(("2023/costco", "2024/costco", "mail", "notes", "slides/old"))
        file = self.root / place / f"file {self.num}{self.random.choice(KINDS)}"
        self.words[file] = self.make_word()
        write_file(file, self.words[file])

    def live_a_day(self) -> None:
        """Add, change, rename and delete some files, and move a folder now and then."""
        for _ in range(self.random.randint(5, 25)):
            self.add()
        for file in self.random.sample(sorted(self.words), 24):
            match self.random.choice(("change", "rename", "delete")):
                case "change":
                    self.words[file] = self.make_word()
                    write_file(file, self.words[file])
                case "rename":
                    new = file.with_name(f"renamed {file.name}")
                    file.rename(new)
                    self.words[new] = self.words.pop(file)
                case "delete":
                    file.unlink()
                    del self.words[file]
        if self.random.random() < 0.3:
            old, new = self.root / "notes", self.root / f"notes {self.num}"
            if old.is_dir():
                old.rename(new)
                moved = {file: new / file.relative_to(old) for file in self.words if file.is_relative_to(old)}
                for file, target in moved.items():
                    self.words[target] = self.words.pop(file)


@pytest.mark.parametrize("office", [False, True])
def test_two_weeks_of_a_mixed_folder(office, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if office:
        monkeypatch.delenv("RANDSLOT_OFFICE")
    find_office.cache_clear()
    if office and find_office() is None:
        pytest.skip("no LibreOffice here: apt-get install libreoffice")
    folder = Folder(tmp_path / "in", seed=40)
    for _ in range(500):
        folder.add()
    said: list[str] = []
    with Library(tmp_path / "lib") as library:
        watch = Watch(SharedLibrary(library), [str(folder.root)], said.append)
        watch.start()
        try:
            for _ in range(15):
                check(library, folder)
                folder.live_a_day()
            check(library, folder)
        finally:
            watch.close()
        assert library.verify() == []
        assert not [line for line in said if "could not" in line]
        hits = library.search("harbour", 100, filters={"in": "2024/COSTCO", "type": "mail"})
        mails = {str(file) for file in folder.words if "/2024/costco/" in str(file) and file.suffix == ".eml"}
        assert {hit.source for hit in hits} == mails
        shutil.rmtree(folder.root / "mail")
        summary = library.add(folder.root, workers=1, prune=True)
        assert len(summary.removed) == sum("/mail/" in str(file) for file in folder.words)
        assert (summary.added, summary.changed, summary.failed) == ([], [], {})


def check(library: Library, folder: Folder) -> None:
    """Wait until the library has what the folder has, then search for some of it."""
    expected = {str(file) for file in folder.words}
    end = time.monotonic() + 300
    while {file.source for file in library.manifest.find(state="done")} != expected or not is_current(library):
        assert time.monotonic() < end, "the library does not follow"
        time.sleep(0.5)
    for file in folder.random.sample(sorted(folder.words), 20):
        hits = library.search(folder.words[file], verbatim=True)
        assert [hit.source for hit in hits] == [str(file)]


def is_current(library: Library) -> bool:
    """Whether no file has changed since it was indexed."""
    for file in library.manifest.find(state="done"):
        stat = Path(file.source).stat()
        if (stat.st_size, stat.st_mtime_ns) != (file.size, file.modified):
            return False
    return True
