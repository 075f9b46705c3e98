"""`randslot watch` on a real file system: within seconds the library has what the folder has."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest

from contract.conftest import make_environment
from contract.pdf import write_pdf
from contract.serving import serve
from randslot.errors import DiskFullError
from randslot.library.library import Library
from randslot.library.sharing import SharedLibrary
from randslot.library.sources import list_files
from randslot.library.watch import Watch, find_drives
from randslot.pages.convert import find_office

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A folder that a thread watches, its library, and what the thread said."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("RANDSLOT_OFFICE", "none")
    monkeypatch.setenv("RANDSLOT_OCR", "none")
    find_office.cache_clear()
    folder = tmp_path / "in"
    folder.mkdir()
    write_pdf(folder / "old.pdf", [["A walrus"]])
    with Library(tmp_path / "lib") as library:
        said: list[str] = []
        watch = Watch(SharedLibrary(library), [str(folder)], said.append)
        watch.start()
        wait_for(lambda: find(library) == {"old.pdf"})
        yield folder, library, said
        watch.close()


def find(library: Library) -> set[str]:
    return {os.path.basename(file.source) for file in library.files() if file.state == "done"}


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def test_new_changed_renamed_and_deleted_files_are_followed(watched):
    folder, library, said = watched
    (folder / "note.md").write_text("a heron")
    (folder / ".hidden.md").write_text("a heron")
    (folder / "program.exe").write_text("a heron")
    wait_for(lambda: find(library) == {"old.pdf", "note.md"})
    (folder / "note.md").write_text("a pelican, and no other bird")
    wait_for(lambda: library.search("pelican"))
    assert library.search("heron", verbatim=True) == []
    (folder / "note.md").rename(folder / "birds.md")
    wait_for(lambda: find(library) == {"old.pdf", "birds.md"})
    wait_for(lambda: any(line.startswith("moved ") and line.endswith("birds.md") for line in said))  # not read again
    (folder.parent / "new" / "below").mkdir(parents=True)
    (folder.parent / "new" / "below" / "deep.md").write_text("an otter")
    (folder.parent / "new").rename(folder / "new")  # a whole folder comes and goes
    wait_for(lambda: library.search("otter"))
    shutil.rmtree(folder / "new")
    (folder / "birds.md").unlink()
    wait_for(lambda: find(library) == {"old.pdf"})


def test_a_file_that_is_being_written_waits(watched):
    folder, library, said = watched
    whole = write_pdf(folder.parent / "whole.pdf", [[f"Page {number} about yaks"] for number in range(30)]).read_bytes()
    with (folder / "slow.pdf").open("wb") as file:
        for start in range(0, len(whole), len(whole) // 8 + 1):
            file.write(whole[start : start + len(whole) // 8 + 1])
            file.flush()
            time.sleep(0.4)
    wait_for(lambda: find(library) == {"old.pdf", "slow.pdf"})
    assert not any("could not index" in line for line in said)


@pytest.mark.nightly
def test_a_burst_of_a_thousand_files(watched):
    folder, library, _ = watched
    for number in range(1000):
        (folder / f"{number}.txt").write_text(f"number {number}")
    wait_for(lambda: len(find(library)) == 1001, 240)
    assert library.search("999")[0].source.endswith("/999.txt")


def test_a_full_disk_is_waited_for(watched, monkeypatch):
    folder, library, said = watched
    is_full = Event()
    is_full.set()
    add = library.add

    def fail(*args, **options):
        if is_full.is_set():
            raise DiskFullError("the disk is full")
        return add(*args, **options)

    monkeypatch.setattr(library, "add", fail)
    monkeypatch.setattr("randslot.library.watch.RETRY_SECONDS", 0.5)
    (folder / "late.md").write_text("a stork")
    wait_for(lambda: any("the disk is full" in line for line in said))
    is_full.clear()
    wait_for(lambda: library.search("stork"))


def test_an_empty_folder_is_taken_for_a_drive_that_is_not_there(watched):
    folder, library, said = watched
    (folder / "old.pdf").rename(folder.parent / "old.pdf")
    wait_for(lambda: said and "is empty: keeping its 1 files" in said[-1])
    assert find(library) == {"old.pdf"}
    (folder.parent / "old.pdf").rename(folder / "old.pdf")  # it is back
    (folder / "new.md").write_text("a heron")
    wait_for(lambda: find(library) == {"old.pdf", "new.md"})
    (folder / "old.pdf").unlink()
    wait_for(lambda: find(library) == {"new.md"})


def test_network_drives_are_found(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\nserver:/x /mnt/with\\040space nfs4 rw 0 0\n//server/y /home/me/share cifs rw 0 0\n"
        "tmpfs /home/me/share/fast tmpfs rw 0 0\nsshfs#x /mnt/s fuse.sshfs rw 0 0\n/dev/sdb /mnt/usb fuseblk rw 0 0\n"
        "auto /mnt/late autofs rw 0 0\nserver:/z /mnt/late nfs rw 0 0\n"
    )

    def find_them(*folders: str) -> list[str]:
        return find_drives(folders, str(mounts))

    assert find_them("/home/other", "/mnt/usb", "/home/me/share/fast/x", "/mnt/wit") == []
    assert find_them("/home/me", "/mnt/late/x") == ["/home/me/share", "/mnt/late"]
    assert find_them("/mnt/with space/papers", "/mnt/s") == ["/mnt/s", "/mnt/with space"]
    assert find_drives(["/"], str(tmp_path / "none")) == []


@pytest.mark.nightly
@pytest.mark.parametrize("poll", [False, True])
def test_files_below_a_mount_are_found_and_stay_when_it_is_gone(poll, tmp_path, monkeypatch):
    """bindfs hides from inotify what happens below, as network drives do."""
    monkeypatch.setenv("RANDSLOT_OCR", "none")
    below, mount = tmp_path / "below", tmp_path / "mount"
    for folder in (below, mount):
        folder.mkdir()
    (below / "old.md").write_text("a walrus")
    if shutil.which("bindfs") is None or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("no bindfs here, or no /dev/fuse: apt-get install bindfs")
    mounted = subprocess.run(["bindfs", below, mount], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"bindfs cannot mount here: {mounted.stderr.strip()}")
    said: list[str] = []
    try:
        with Library(tmp_path / "lib") as library:
            watch = Watch(SharedLibrary(library), [str(mount)], said.append, poll)
            watch.start()
            try:
                wait_for(lambda: find(library) == {"old.md"})
                assert any(line.endswith("every second") for line in said) is not poll
                for text in ("a heron", "a pelican, and no other bird"):
                    (below / "new.md").write_text(text)
                    wait_for(lambda text=text: library.search(f'"{text}"', verbatim=True), 30)
                (below / "old.md").unlink()
                wait_for(lambda: find(library) == {"new.md"})
                subprocess.run(["umount", "-l", mount], check=True)
                wait_for(lambda: "is empty: keeping its 1 files" in said[-1])
                assert find(library) == {"new.md"}
            finally:
                watch.close()
    finally:
        subprocess.run(["umount", "-l", mount], capture_output=True)


def test_links_to_folders_are_listed_or_followed_once(tmp_path):
    folder, other = tmp_path / "in", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "far.md").write_text("far")
    (folder / "link").symlink_to(other)
    (other / "loop").symlink_to(folder)
    listing = list_files([folder], tmp_path / "lib")
    assert (listing.files, listing.links) == ([], [str(folder / "link")])
    listing = list_files([folder], tmp_path / "lib", follow_links=True)
    assert (listing.files, listing.links) == ([str(folder / "link" / "far.md")], [])


@pytest.mark.parametrize("options", [[], ["--poll"]])
def test_other_commands_search_meanwhile_and_ctrl_c_ends_it(options, tmp_path):
    (tmp_path / "in").mkdir()
    env = make_environment(tmp_path / "home")
    command = [sys.executable, "-m", "randslot"]
    watch = [*command, "watch", "in", "-l", "lib", *options]
    with subprocess.Popen(watch, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("watching in")
        write_pdf(tmp_path / "in" / "a.pdf", [["A walrus"]])
        assert process.stdout.readline().endswith("added in/a.pdf\n")
        search = [*command, "search", "walrus", "-l", "lib"]
        assert "in/a.pdf" in subprocess.run(search, cwd=tmp_path, env=env, capture_output=True, text=True).stdout
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().endswith("stopped\n")
        assert process.wait(20) == 0
    assert Path(tmp_path / "lib" / "library.json").is_file()


def test_a_service_watches_folders_too(tmp_path):
    write_pdf(tmp_path / "in" / "a.pdf", [["A walrus"]])
    with serve(tmp_path / "lib", "--new", "--watch", tmp_path / "in") as one:
        wait_for(lambda: one.names("walrus") == [("a.pdf", 1)])
        write_pdf(tmp_path / "in" / "b.pdf", [["A heron"]])
        wait_for(lambda: one.names("heron") == [("b.pdf", 1)])
        (tmp_path / "in" / "a.pdf").unlink()
        wait_for(lambda: not one.names("walrus"))
        code, log = one.stop()
    assert (code, "Traceback" in log) == (0, False)
