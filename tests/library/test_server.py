"""A library on a server: the same commands, what is sent, what happens when nodes are lost, and who may write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.conversions.conversion import RestToGrpc

from randslot.errors import BusyError, RandSlotError, UsageError
from randslot.library.address import Address, read_address
from randslot.library.library import Library
from randslot.library.stores import qdrant_connection as connecting
from randslot.library.stores.points import Filter, Point, StoredPage, StoredText, make_payload, make_vectors
from randslot.library.stores.qdrant import (
    ServerStore,
    make_message,
)
from randslot.library.stores.qdrant_connection import (
    ANSWER_SECONDS,
    BACKOFFS,
    CONNECT_SECONDS,
    RETRY_SECONDS,
    Connection,
    connect,
)
from randslot.library.stores.qdrant_records import ABOUT_ID, ServerRecords
from randslot.library.stores.store import StoreQuery, Where
from randslot.serve.service import Service
from randslot.serve.uploads import UploadLimits
from randslot.words.analyzer import Terms
from support.libraries import ToyReader, visible, write_tiff
from support.models import noise
from support.qdrant_server import NODE_AWAY, serving

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def quick(monkeypatch):
    """No long waits before a request is sent again."""
    monkeypatch.setattr(connecting, "BACKOFFS", (0.001,) * 4)


@pytest.fixture
def model():
    return ToyReader()


@pytest.fixture
def standin():
    with serving() as (made, port):
        made.url = f"qdrant://127.0.0.1:{port}/papers"
        yield made


def random_pages(num: int, vectors: int = 4, dim: int = 2048) -> list[StoredPage]:
    values = np.random.default_rng(0).standard_normal((num, vectors, dim)).astype(np.float32)
    return [StoredPage(str(uuid.UUID(int=7)), number, "", page) for number, page in enumerate(values, start=1)]


# -- addresses


def test_addresses_are_read():
    assert read_address("qdrant://host/papers") == Address("host", "papers")
    full = read_address("qdrants://db.example.org:7000/my-papers_2?shards=6&replicas=2")
    assert full == Address("db.example.org", "my-papers_2", 7000, True, 6, 2)
    assert str(full) == "qdrants://db.example.org:7000/my-papers_2"
    assert str(read_address("qdrant://[::1]:6334/p")) == "qdrant://[::1]:6334/p"
    several = read_address("qdrant://a,b:7000,[::1]:6335/papers")
    assert several.nodes == (("a", 6334), ("b", 7000), ("::1", 6335))
    assert str(several) == "qdrant://a:6334,b:7000,[::1]:6335/papers"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("http://host/papers", "is not a library address"),
        ("qdrant://a,b:x/papers", "is not a library address"),
        ("qdrant://host", "is not a library address"),
        ("qdrant://a,b,a:6334/papers", "is not a library address"),
        ("qdrant://me:secret@host/papers", "an address must not contain a key"),
        ("qdrant://host/papers-files", "lists the files of a library"),
        ("qdrant://host/papers?shard=2", "shard=2 in .*set shards and replicas"),
        ("qdrant://host/papers?shards=99999999999999999999", "from 1 to 10,000"),
    ],
)
def test_a_wrong_address_is_one_line(text, wrong):
    with pytest.raises(UsageError, match=wrong) as caught:
        Library(text)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


# -- what is sent


@pytest.mark.parametrize(("dim", "codes"), [(2048, "binary"), (128, None)])
def test_a_collection_is_made_for_pages(standin, dim, codes):
    address = read_address(f"{standin.url}?shards=6&replicas=3")
    connection = connect(address)
    ServerStore(connection, dim)
    made = standin.settings["papers"]
    vectors = made.vectors_config.params_map.map["page"]
    assert (made.shard_number, made.replication_factor) == (6, 3)
    assert vectors.size == dim
    assert vectors.quantization_config.WhichOneof("quantization") == codes
    assert vectors.HasField("multivector_config")
    assert vectors.multivector_config.comparator == 0  # MaxSim
    assert vectors.datatype == 3  # float16
    assert vectors.hnsw_config.m == 0
    ServerStore(connection, dim)  # as it is
    connection.close()
    for change, wrong in (("shards=2", "has shards=6"), ("replicas=1", "has replicas=3")):
        again = connect(read_address(f"{standin.url}?{change}"))
        with pytest.raises(UsageError, match=wrong):
            ServerStore(again, dim)
        again.close()


def test_requests_stay_below_the_limit(standin):
    connection = connect(read_address(standin.url))
    store = ServerStore(connection, 2048)
    store.max_bytes = 2**20
    store.add(random_pages(90))  # of 32 KiB
    assert standin.asked.count("Upsert") == 3
    assert 2**19 < standin.largest < 2**20
    assert store.count(Filter()) == 90
    connection.close()


def test_a_point_is_what_the_client_makes_of_it():
    text = StoredText("layer", "some words", terms=Terms((3, 7), (0.5, 1.5)))
    (page,) = (replace(page, text=text) for page in random_pages(1))
    vectors = {
        "page": page.vectors.astype(np.float16).astype(np.float32).tolist(),
        "words": models.SparseVector(indices=list(text.terms.numbers), values=list(text.terms.weights)),
    }
    wanted = models.PointStruct(id=page.id, vector=vectors, payload=make_payload(page))
    point = Point(page.id, make_vectors(page), make_payload(page))
    assert make_message(point) == RestToGrpc.convert_point_struct(wanted)


def test_many_queries_with_many_files_are_several_requests(standin):
    connection = connect(read_address(standin.url))
    random = np.random.default_rng(0)
    files = [str(uuid.UUID(int=i)) for i in range(1, 31)]
    store = ServerStore(connection, 16)
    store.add([StoredPage(file, 1, "", random.standard_normal((2, 16)).astype(np.float32)) for file in files])
    queries = [StoreQuery(vectors) for vectors in random.standard_normal((5, 2, 16)).astype(np.float32)]
    for field in ("files", "hidden"):
        where = Where(**{field: frozenset(files[:20])})
        wanted = store.search(queries, 3, where, exact=True)
        standin.asked.clear()
        small = ServerStore(connection, 16)
        small.max_bytes = 3000  # room for two queries of twenty ids
        assert small.search(queries, 3, where, exact=True) == wanted
        assert standin.asked.count("QueryBatch") == 3
        assert {hit.file in files[:20] for hits in wanted for hit in hits} == {field == "files"}
    connection.close()


# -- lost nodes


def test_what_fails_for_a_moment_is_sent_again_and_stored_once(standin, quick, model, papers):
    calls = []

    def every_third(method: str) -> grpc.StatusCode | None:
        calls.append(method)
        codes = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL  # as of a cluster with too few active replicas
        return codes[len(calls) % 2] if len(calls) % 3 == 0 else None

    lost = []

    def every_fourth_write(method: str) -> bool:
        if method in ("Upsert", "Delete"):
            lost.append(method)
        return method in ("Upsert", "Delete") and len(lost) % 4 == 0

    standin.fail, standin.lose = every_third, every_fourth_write
    with Library(standin.url, model) as library:
        summary = library.add(papers, batch=2)
        assert (len(summary.added), summary.encoded) == (3, 7)
        assert library.verify() == []
        assert sum(library.store.counts().values()) == 7
        assert library.add(papers).unchanged == 3
        assert len(library.search("x", 9)) == 7
    assert len(lost) >= 4


def test_a_server_that_stays_away_is_one_line_and_nothing_is_lost(standin, quick, model, papers):
    with Library(standin.url, model) as library:
        library.add(papers / "a.tif")
        upserts = []

        def after_four_writes(method: str) -> grpc.StatusCode | None:
            upserts.extend([method] * (method == "Upsert"))
            return grpc.StatusCode.UNAVAILABLE if method == "Upsert" and len(upserts) > 4 else None

        standin.fail = after_four_writes
        with pytest.raises(RandSlotError, match="the server is unreachable") as caught:
            library.add(papers, batch=1)
        assert "\n" not in str(caught.value)
        standin.fail = lambda _: None
        assert visible(library) == {"a.tif": {1, 2, 3}}
        library.add(papers)
        assert visible(library) == {"a.tif": {1, 2, 3}, "b.tif": {1, 2, 3}, "c.png": {1}}
        assert library.verify() == []


class Away:
    """A client whose server always answers with one error."""

    def __init__(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, details: str = "away") -> None:
        self.error, self.asked = grpc.RpcError(), 0
        self.error.code, self.error.details = lambda: code, lambda: details

        self.info = self.count

    def count(self, **_: object) -> None:
        self.asked += 1
        raise self.error


def test_a_request_that_is_too_large_is_not_sent_again():
    client = Away(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (38000000 vs. 33554432)")
    with pytest.raises(RandSlotError, match="larger than max") as caught:
        Connection([client], Address("host", "papers")).ask("count")
    assert (client.asked, isinstance(caught.value, BusyError)) == (1, False)


class Time:
    """Waits that take no time, and a clock that counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, connection: Connection) -> None:
        self.waited: list[float] = []
        monkeypatch.setattr(connection.is_down, "wait", self.waited.append)
        monkeypatch.setattr(connecting.time, "monotonic", lambda: sum(self.waited))


def test_waits_are_short_noted_once_and_end_in_time(monkeypatch, caplog):
    client = Away()
    connection = Connection([client], Address("host", "papers"))
    now = Time(monkeypatch, connection)
    with pytest.raises(BusyError, match="the server is unreachable"):
        connection.ask("count")
    assert RETRY_SECONDS - 3 < sum(now.waited) < RETRY_SECONDS + 1
    assert RETRY_SECONDS + ANSWER_SECONDS <= 60  # what the docs promise
    assert all(base <= real <= 1.5 * base for base, real in zip(BACKOFFS, now.waited, strict=False))
    assert max(now.waited) < 2  # a server that is back is asked soon
    assert client.asked == len(now.waited) + 1
    (note,) = caplog.messages
    assert note.startswith("note: qdrant://host:6334/papers: the server is unreachable")
    assert note.endswith("retrying")
    with pytest.raises(BusyError):  # as on the way out: once, and no waiting
        connection.ask("count")
    asked = len(now.waited)
    assert client.asked == asked + 2
    client.count = lambda **_: 7
    assert connection.ask("count") == 7
    client.count = Away().count
    with pytest.raises(BusyError):
        connection.ask("count")
    assert len(now.waited) > asked + 5


def test_the_first_request_gives_up_soon_and_without_a_note(monkeypatch, caplog):
    """When no server is there it is often the address that is wrong: the error itself comes soon enough."""
    client = Away()
    connection = Connection([client], Address("host", "papers"))
    now = Time(monkeypatch, connection)
    with pytest.raises(BusyError, match="the server is unreachable"):
        connection.get_version()
    assert CONNECT_SECONDS - 3 < sum(now.waited) < CONNECT_SECONDS + 1
    assert caplog.messages == []
    client.info = lambda: SimpleNamespace(version="1.16.3")
    assert connection.get_version() == "1.16.3"
    with pytest.raises(BusyError):  # later ones are sent again for longer
        connection.ask("count")
    assert sum(now.waited) > RETRY_SECONDS


def test_slow_nodes_are_not_all_asked_if_the_bound_has_passed(monkeypatch):
    clients = [Away(grpc.StatusCode.DEADLINE_EXCEEDED) for _ in range(3)]
    connection = Connection(clients, Address("a", "papers", others=(("b", 6334), ("c", 6334))))
    asked = lambda: sum(client.asked for client in clients)  # noqa: E731
    monkeypatch.setattr(connecting.time, "monotonic", lambda: float(ANSWER_SECONDS * asked()))
    with pytest.raises(BusyError, match="no answer within 30 seconds"):
        connection.ask("count")
    assert asked() * ANSWER_SECONDS <= 60


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        (NODE_AWAY, "no replica of a shard is available (10.0.0.2:6335): start that node"),
        (
            "Service internal error: 1 of 2 read operations failed:\n  Tonic status error: status: Unavailable",
            "no replica of a shard is available: start that node",
        ),
        ('Tonic status error: status: InvalidArgument, message: "Wrong input", details: []', "Wrong input"),
        ("Not enough\n  memory", "Not enough memory (failed precondition)"),
    ],
)
def test_a_reason_is_one_plain_line(details, reason):
    """As clusters of 1.16 have said it, when nodes were away."""
    client = Away(grpc.StatusCode.FAILED_PRECONDITION, details)
    with pytest.raises(RandSlotError) as caught:
        Connection([client], Address("host", "papers")).ask("count")
    assert str(caught.value) == f"qdrant://host:6334/papers: {reason}"
    assert client.asked == 1


def test_a_lost_collection_is_not_waited_for_again_while_another_answers(monkeypatch):
    client = Away(grpc.StatusCode.INTERNAL, NODE_AWAY)
    client.facet = lambda **_: 7
    connection = Connection([client], Address("host", "papers"))
    now = Time(monkeypatch, connection)
    for _ in range(3):
        assert connection.ask("facet", collection_name="papers-files") == 7
        with pytest.raises(BusyError):
            connection.ask("count", collection_name="papers")
    assert sum(now.waited) < RETRY_SECONDS + 1
    client.count = lambda **_: 8
    assert connection.ask("count", collection_name="papers") == 8
    assert connection.lost == set()


def test_another_node_is_asked_at_once_and_stays_the_one_that_is_asked():
    away, back = Away(), Away()
    back.count = lambda **_: 7
    connection = Connection([away, back], Address("a", "papers", others=(("b", 6334),)))
    connection.backoffs = ()
    assert connection.ask("count") == 7
    assert connection.ask("count") == 7
    assert away.asked == 1


def test_the_reason_is_that_of_a_node_that_is_there():
    """As with two nodes: one is lost, and the other cannot agree with itself."""
    alone = Away(grpc.StatusCode.INTERNAL, "Waiting for consensus operation commit failed")
    for clients in ([alone, Away()], [Away(), alone]):
        connection = Connection(clients, Address("a", "papers", others=(("b", 6334),)))
        connection.backoffs = ()
        with pytest.raises(BusyError, match="no quorum"):
            connection.ask("count")


def test_a_writer_has_a_node_catch_up_before_it_asks_it():
    away, back = Away(), Away()
    back.count = lambda **_: 7
    connection = Connection([back, back], Address("a", "papers", others=(("b", 6334),)))
    connection.backoffs = ()
    caught_up = []
    connection.catch_up = lambda: caught_up.append(connection.current)
    connection.ask("count")
    connection.ask("count")
    assert caught_up == [0]
    connection.clients[0] = away
    connection.ask("count")
    assert caught_up == [0, 1]
    connection.caught_up[1] = False
    connection.catch_up = lambda: (_ for _ in ()).throw(RandSlotError("lost"))
    with pytest.raises(RandSlotError, match="lost"):
        connection.ask("count")


def test_one_thread_that_gives_up_ends_the_waiting_of_others():
    client = Away()
    connection = Connection([client], Address("host", "papers"))
    connection.backoffs = (60.0,)
    ended = []

    def ask() -> None:
        with pytest.raises(BusyError):
            connection.ask("count")
        ended.append(True)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    while not client.asked:
        time.sleep(0.01)
    connection.is_down.set()
    thread.join(30)
    assert ended


def test_no_server_and_an_old_one_are_one_line(quick):
    with pytest.raises(RandSlotError, match=r"qdrant://127.0.0.1:9/papers: the server is unreachable"):
        Library("qdrant://127.0.0.1:9/papers", create=False)
    with (
        serving(version="1.15.4") as (_, port),
        pytest.raises(RandSlotError, match=r"runs Qdrant 1.15.4: upgrade"),
    ):
        Library(f"qdrant://127.0.0.1:{port}/papers", create=False)


def test_the_key_comes_from_the_environment(monkeypatch):
    with serving(key="open sesame") as (_, port):
        url = f"qdrant://127.0.0.1:{port}/papers"
        with pytest.raises(RandSlotError, match=r"refused the API key: .* QDRANT_API_KEY"):
            Library(url, ToyReader())
        monkeypatch.setenv("QDRANT_API_KEY", "open sesame")
        with Library(url, ToyReader()) as library:
            assert len(library) == 0


CONNECT = """
import sys
from randslot.errors import RandSlotError
from randslot.library.address import read_address
from randslot.library.stores.qdrant_connection import connect
try:
    print(connect(read_address(sys.argv[1])).ask("info").title)
except RandSlotError as error:
    print(error)
"""


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_an_address_with_tls_trusts_only_what_it_should(tmp_path):
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names, *files]
    subprocess.run(make, check=True, capture_output=True)
    key, certificate = ((tmp_path / name).read_bytes() for name in ("key.pem", "cert.pem"))
    with serving(tls=grpc.ssl_server_credentials([(key, certificate)])) as (_, port):
        for trusted, answer in ((str(tmp_path / "cert.pem"), "stand-in"), ("", "the server is unreachable")):
            environment = os.environ | {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": trusted, "GRPC_VERBOSITY": "NONE"}
            words = [sys.executable, "-c", CONNECT, f"qdrants://localhost:{port}/papers"]
            said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
            assert answer in said


# -- a library


def test_two_machines_see_one_library(url, model, papers, tmp_path):
    with Library(url, model) as one, Library(url, model) as two, Library(tmp_path / "l", model) as here:
        one.add(papers, metadata={"year": 2023})
        here.add(papers, metadata={"year": 2023})
        wanted = here.search("x", 10, exact=True)
        found = two.search("x", 10, exact=True)
        assert [(hit.source, hit.page, hit.metadata) for hit in found] == [
            (hit.source, hit.page, hit.metadata) for hit in wanted
        ]
        np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in wanted], atol=1e-3)
        assert two.add(papers).unchanged == 3
        assert [hit.page for hit in two.search("x", 9, filters={"source": "a.tif", "page": (2, 3)})] in ([2, 3], [3, 2])
        assert {Path(hit.source).name for hit in two.search("x", 9, filters={"year": 2023})} == {
            "a.tif",
            "b.tif",
            "c.png",
        }
        write_tiff(papers / "a.tif", [1, 2, 9])
        assert (two.add(papers).changed, len(one)) == ([str(papers / "a.tif")], 7)
        (papers / "b.tif").rename(papers / "d.tif")
        assert one.add(papers).moved == [str(papers / "d.tif")]
        two.remove("c.png")
        assert one.manifest.get([ABOUT_ID, "no id"]) == {}
        assert (one.status().files, one.status().pages, one.verify()) == (2, 6, [])
        assert np.allclose(
            one.compare("x", one.search("x", 1)[0].id).max(1).sum(), one.search("x", 1)[0].score, atol=1e-3
        )


def test_any_client_can_read_the_pages(standin, model, papers):
    with Library(standin.url, model) as library:
        library.add(papers)
        best = library.search("x", 1, exact=True)[0]
        query = model.embed_queries(["x"])[0]
    client = QdrantClient(
        host="127.0.0.1", grpc_port=read_address(standin.url).port, prefer_grpc=True, check_compatibility=False
    )
    (found,) = client.query_points("papers", query=query.tolist(), using="page", limit=1, with_payload=True).points
    assert (found.id, found.payload["number"]) == (best.id, best.page)
    client.close()


def test_a_name_that_is_no_text_and_an_image_without_a_file(url, model, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")
    noise(64, 96, 1).save(Path(odd), "PNG")
    with Library(url, model) as library:
        library.add([odd, noise(64, 96, 2)])
        assert sorted(os.fsencode(hit.source) for hit in library.search("x")) == sorted(
            os.fsencode(file.source) for file in library.files()
        )
        assert odd in {file.source for file in library.files()}
        assert library.add([odd]).unchanged == 1
        (kept,) = (tmp_path / "data").rglob("*.png")
        library.remove(str(kept))
        assert not kept.exists()


def test_no_library_another_model_and_another_collection_are_refused(standin, model):
    with pytest.raises(UsageError, match=r"no library at qdrant://.*: randslot index creates one"):
        Library(standin.url, create=False)
    Library(standin.url, model).close()
    with pytest.raises(RandSlotError, match="was indexed with dimension=16, not 8"):
        Library(standin.url, ToyReader(dimension=8))
    standin.client.create_collection("mine", vectors_config={})
    standin.settings["mine"] = standin.settings["papers-files"]
    standin.client.upsert("mine", [models.PointStruct(id=1, vector={})])
    with pytest.raises(UsageError, match="is not a library and not empty"):
        Library(standin.url.replace("papers", "mine"), model)


def test_a_library_that_was_half_made_is_made_whole(standin, model, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(ServerRecords, "put", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Library(standin.url, model)
    assert standin.client.collection_exists("papers")
    with pytest.raises(UsageError, match="no library at"):
        Library(standin.url, create=False)
    with Library(standin.url, model) as library:
        assert library.status().files == 0


# -- one writer at a time


def test_without_the_lease_nothing_is_written(url, model):
    with Library(url, model) as library, pytest.raises(RandSlotError, match="the write lease"):
        library.store.delete("x")


def test_an_upload_waits_while_another_writes(standin, model):
    with Library(standin.url, model) as library, Library(standin.url, model) as other:
        service = Service(library, upload_limits=UploadLimits(retry_seconds=0.05))
        file = service.uploads.folder / "late.png"
        noise(64, 96, 1).save(file)
        with other.write():
            job = service.uploads._queue(file)
            tries = len(standin.asked)
            while len(standin.asked) < tries + 8:
                time.sleep(0.01)
            assert not service.uploads.find_job(job.id).is_finished
            assert file.is_file()
        until = time.monotonic() + 60
        while not service.uploads.find_job(job.id).is_finished and time.monotonic() < until:
            time.sleep(0.02)
        service.close()
        assert service.uploads.find_job(job.id).state == "done"
        assert len(other) == 1


def test_lost_pages_are_told_and_repaired(url, model, papers):
    with Library(url, model) as library:
        library.add(papers / "a.tif")
        library.location.connection.client.delete_collection(library.location.connection.address.collection)
    with pytest.raises(
        RandSlotError, match=r"the pages of library qdrant://\S+ are missing.* randslot library verify --repair"
    ):
        Library(url, model)
    with Library(url, model, repair=True) as library:
        assert library.verify(repair=True) == [f"{papers}/a.tif: 0 of 3 pages are stored"]
        assert library.add(papers / "a.tif").encoded == 3
        assert library.verify() == []
