"""Copy a library: pages as they are stored, file by file, then compare what both find."""

from __future__ import annotations

import random
import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from ..errors import RandSlotError, UsageError
from ..words.analyzer import Terms
from .folder import is_kept
from .ingest import SAFE_SECONDS
from .languages import LibraryWords
from .library import Library
from .location import clear
from .manifest import File
from .models import check_model
from .results import Progress
from .stores.base import StoredPage, StoreHit, StoreQuery, Where, page_id, pages_at_once

PAGES = 256  # that are read and written at once, if they are small
SEARCHES, HITS = 20, 5  # that are compared at the end
QUERY_TERMS = 8  # of a page that is searched for by its words
NEAR = 0.01  # scores that may change places: sums of products of half-precision numbers
SAME = "both are the same library: name two different places"


@dataclass
class Copied:
    """What a copy did: files and pages that are new, files that were there, what was compared, and what is wrong.

    notes: what else one should know of the copy.
    """

    files: int = 0
    pages: int = 0
    known: int = 0
    compared: int = 0
    searches: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def copy_library(source: Library, target: Library, report: Callable[[Progress], None] = lambda _: None) -> Copied:
    """Copy what can be seen in a library into another one of the same model; what the target has beside it stays.

    It may be stopped or killed and run again: pages that are there are not copied twice, and files become visible when
    they are complete.

    Errors: UsageError if both are the same library; RandSlotError if a file of the source changes meanwhile.
    """
    _check_same_kind(source, target)
    files = source.manifest.find(state="done")
    with target.write():
        if source.location.is_same(target.location):
            raise UsageError(SAME)
        copied = _Copy(source, target, report).run([_settle(file, source, target) for file in files])
        target.store.optimize()
    _compare(source, target, files, copied)
    if source.sketches.noted and not target.sketches.noted:
        copied.notes.append(f"sketches are not copied: randslot library sketch -l {target.name} makes them")
    return copied


def _check_same_kind(source: Library, target: Library) -> None:
    """Refuse a target whose vectors or words cannot be compared with those of the source.

    Errors: UsageError.
    """
    if source.binding and target.binding:
        check_model(source.binding, target.binding, source.name, "name another place")
    elif source.binding or target.binding:
        one, other = (source, target) if source.binding else (target, source)
        raise UsageError(f"library {one.name} has vectors and {other.name} has none: name another place")
    _join_languages(source.words, target.words, f"library {source.name}", target.name)


def _join_languages(source: LibraryWords, target: LibraryWords, from_name: str, to_name: str) -> None:
    """Have the target read queries in the languages of the source too.

    Errors: UsageError if the target reads all pages in one language, and that is another.
    """
    for words, name in ((source, from_name.removeprefix("library ")), (target, to_name)):
        if words.begun:
            raise UsageError(
                f"the words of library {name} are not all counted anew: randslot library words -l {name} goes on"
            )
    if source.language and not target.language:
        target.set(source.languages, source.each)
    elif source.language == target.language and not set(source.languages) <= set(target.languages):
        target.set(tuple(dict.fromkeys((*target.languages, *source.languages))), target.each)
    elif source.language and source.language != target.language and not target.each:
        raise UsageError(
            f"the words of {from_name} are {source.language}, and those of {to_name} {target.language}: "
            f"randslot library words -l {to_name} --language auto lets it hold both"
        )


def _settle(file: File, source: Library, target: Library) -> File:
    """Return a file as the target knows it: one that the source keeps in its own folder is kept in the target's."""
    if not is_kept(file, str(source.folder.absolute())):
        return file
    own = target.folder.absolute() / Path(file.source).relative_to(source.folder.absolute())
    if not own.is_file() and Path(file.source).is_file():
        own.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file.source, own)
    return replace(file, source=str(own))


class _Copy:
    """One run: the pages of many files go in the same requests."""

    def __init__(self, source: Library, target: Library, report: Callable[[Progress], None]) -> None:
        self.source, self.target, self.report = source, target, report
        self.copied = Copied()

    def run(self, files: list[File]) -> Copied:
        known = {file.id: file for file in self.target.manifest.find()}
        new = self._leave_known(files, known)
        begun = {file.id for file in new if file.id in known}
        self.num_files, self.num_pages = len(new), sum(file.num_pages for file in new)
        self.pages_done = 0
        left = {file.id: file.num_pages for file in new}  # pages that are still to come
        complete: list[File] = []
        safe_at = time.monotonic()
        for some in _split(new, pages_at_once(self.source.store, PAGES)):
            self._copy_pages(some, begun)
            for file, _ in some:
                left[file.id] -= 1
                if not left[file.id]:
                    complete.append(file)
            self.pages_done += len(some)
            if time.monotonic() - safe_at >= SAFE_SECONDS:
                self._finish(complete)
                complete, safe_at = [], time.monotonic()
            self._report()
        self._finish(complete)
        return self.copied

    def _leave_known(self, files: list[File], known: dict[str, File]) -> list[File]:
        """Return the files that the target does not have, and bring the names and metadata of the others up to date."""
        new = []
        for file in files:
            now = known.get(file.id)
            if now is None or now.state != "done":
                new.append(file)
                continue
            self.copied.known += 1
            if now != file:
                self._show([file])
        return new

    def _copy_pages(self, pages: Sequence[tuple[File, int]], begun: set[str]) -> None:
        """Copy some pages, those that an earlier run did not."""
        files = {file.id: file for file, _ in pages}
        there = {id: self.target.store.images(id) if id in begun else {} for id in files}
        self.target.manifest.put(*(replace(file, state="pending") for file in files.values()))  # hidden, before all
        wanted: dict[str, File] = {}
        for file, number in pages:
            if number not in there[file.id]:
                wanted[page_id(file.id, number)] = file
        found = self.source.store.read(list(wanted))
        for id, file in wanted.items():
            if id not in found:
                raise RandSlotError(f"{file.source} changed while it was copied: run the copy again")
        self.target.store.add([self._read_again(page) for page in found.values()])
        self.copied.pages += len(found)

    def _read_again(self, page: StoredPage) -> StoredPage:
        """Return a page as the target reads its words: terms depend on the usual language of a library."""
        if page.text is None or not page.text.text or self.source.words.language == self.target.words.language:
            return page
        terms = self.target.words.choose(page.text.text).weigh_page(page.text.text)
        return replace(page, text=replace(page.text, terms=terms))

    def _finish(self, files: list[File]) -> None:
        self.target.store.flush()
        self._show(files)
        self.copied.files += len(files)
        self._report(tuple(file.source for file in files))

    def _show(self, files: list[File]) -> None:
        for file in files:
            clear(self.target.manifest, self.target.store, self.target.manifest.show(file))

    def _report(self, finished: tuple[str, ...] = ()) -> None:
        self.report(Progress(self.copied.files, self.num_files, self.pages_done, self.num_pages, finished))


def _split(files: list[File], most: int) -> Iterator[list[tuple[File, int]]]:
    some: list[tuple[File, int]] = []
    for file in files:
        for number in range(1, file.num_pages + 1):
            some.append((file, number))
            if len(some) == most:
                yield some
                some = []
    if some:
        yield some


def _compare(source: Library, target: Library, files: list[File], copied: Copied) -> None:
    """Count the pages of every file, and search both for some pages that were copied."""
    counts, visible = target.store.counts(), {file.id for file in target.manifest.find(state="done")}
    for file in files:
        copied.compared += 1
        if counts.get(file.id, 0) != file.num_pages or file.id not in visible:
            copied.problems.append(f"{file.source}: {counts.get(file.id, 0)} of {file.num_pages} pages are copied")
    queries = []
    alike = source.words.language == target.words.language
    for page in source.store.read(_sample(files)).values():
        terms = page.text.terms if page.text and page.text.terms.numbers else None
        if terms and alike:
            terms = Terms(terms.numbers[:QUERY_TERMS], (1.0,) * len(terms.numbers[:QUERY_TERMS]))
            queries.append(StoreQuery(terms=terms))
        if page.vectors is not None:
            queries.append(StoreQuery(page.vectors))
    ids = frozenset(file.id for file in files)
    among = ids if visible - ids else None  # naming all files is slow, and needed only if there are others
    wanted = source.store.search(queries, HITS, Where(hidden=source.manifest.hidden()), exact=True)
    found = target.store.search(queries, HITS, Where(among, target.manifest.hidden()), exact=True)
    copied.searches = len(queries)
    for number, (query, expected, actual) in enumerate(zip(queries, wanted, found, strict=True), start=1):
        agree = _agree_by_words(expected, actual) if query.terms else _agree(expected, actual)
        if not agree:
            copied.problems.append(f"search {number} finds {_show_scores(actual)} and not {_show_scores(expected)}")


def _show_scores(hits: list[StoreHit]) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in hits]


def _sample(files: list[File]) -> list[str]:
    """Return the ids of some pages, all different."""
    ends = list(accumulate((file.num_pages for file in files), initial=0))
    places = random.Random(0).sample(range(ends[-1]), min(SEARCHES, ends[-1]))
    ids = []
    for place in sorted(places):
        i = bisect_right(ends, place)  # of the file after the one that the place is in
        ids.append(page_id(files[i - 1].id, ends[i] - place))
    return ids


def _agree_by_words(wanted: list[StoreHit], found: list[StoreHit]) -> bool:
    """Whether as many pages have the words, and the best is among them, or as good as the last.

    Scores are not compared: each shard of a server counts by itself how rare words are.
    """
    if len(wanted) != len(found):
        return False
    if not wanted or wanted[0].id in {hit.id for hit in found}:
        return True
    return abs(wanted[0].score - wanted[-1].score) <= NEAR


def _agree(wanted: list[StoreHit], found: list[StoreHit]) -> bool:
    """Whether two lists of hits are the same, except for pages whose scores are as good as equal."""
    if len(wanted) != len(found):
        return False
    for expected, actual in zip(wanted, found, strict=True):
        if abs(expected.score - actual.score) > NEAR:
            return False
    ids = {hit.id for hit in found}
    missing = [hit for hit in wanted if hit.id not in ids]
    return all(abs(hit.score - wanted[-1].score) <= NEAR for hit in missing)  # as good as the last one
