"""A stand-in for a Qdrant server: the real gRPC protocol in front of the client's own local mode.

It speaks what the library asks for and no more. It keeps a collection's settings as they came, which local mode does
not, asks for a key, refuses messages above Qdrant's limit, and fails when it is told to. It is no engine: speed, codes,
graphs and shards are not tested with it.
"""

from __future__ import annotations

import argparse
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from qdrant_client import QdrantClient, models
from qdrant_client import grpc as q
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc
from qdrant_client.grpc.collections_service_pb2_grpc import CollectionsServicer, add_CollectionsServicer_to_server
from qdrant_client.grpc.points_service_pb2_grpc import PointsServicer, add_PointsServicer_to_server
from qdrant_client.grpc.qdrant_pb2_grpc import QdrantServicer, add_QdrantServicer_to_server

LIMIT = 32 * 2**20  # bytes of a request, as Qdrant's own
# What a cluster of 1.16.3 answers when the node with the only copy of a shard is lost.
NODE_AWAY = """Service internal error: 1 of 1 read operations failed:
  Service internal error: Tonic status error: status: Unavailable, message: "Failed to connect to \
http://10.0.0.2:6335/, error: transport error", details: [], metadata: MetadataMap { headers: {} }"""
DONE = q.PointsOperationResponse(result=q.UpdateResult(operation_id=0, status=q.UpdateStatus.Completed))


class Standin(PointsServicer, CollectionsServicer, QdrantServicer):
    """The services, on one store in memory."""

    def __init__(self, version: str = "1.20.0") -> None:
        self.client = QdrantClient(":memory:", force_disable_check_same_thread=True)
        self.version = version
        self.settings: dict[str, q.CreateCollection] = {}
        self.asked: list[str] = []  # the methods that were called
        self.fail: Callable[[str], grpc.StatusCode | None] = lambda method: None  # before doing it
        self.lose: Callable[[str], bool] = lambda method: False  # the answer, after doing it
        self.lost: set[str] = set()  # collections whose only node is away, while the others answer
        self.largest = 0  # request

    def HealthCheck(self, request: Any, context: Any) -> Any:
        return q.HealthCheckReply(title="stand-in", version=self.version)

    # -- collections

    def Create(self, request: Any, context: Any) -> Any:
        vectors = (
            GrpcToRest.convert_vectors_config(request.vectors_config) if request.HasField("vectors_config") else {}
        )
        sparse = None
        if request.HasField("sparse_vectors_config"):
            sparse = GrpcToRest.convert_sparse_vector_config(request.sparse_vectors_config)
        self.client.create_collection(request.collection_name, vectors_config=vectors, sparse_vectors_config=sparse)
        self.settings[request.collection_name] = request
        return q.CollectionOperationResponse(result=True)

    def Update(self, request: Any, context: Any) -> Any:
        kept = self.settings[request.collection_name].vectors_config.params_map.map
        for name, change in request.vectors_config.params_map.map.items():
            kept[name].hnsw_config.MergeFrom(change.hnsw_config)  # and a new one, if it was named since
        return q.CollectionOperationResponse(result=True)

    def Delete(self, request: Any, context: Any) -> Any:
        if isinstance(request, q.DeleteCollection):
            self.client.delete_collection(request.collection_name)
            return q.CollectionOperationResponse(result=True)
        self.client.delete(request.collection_name, GrpcToRest.convert_points_selector(request.points))
        return DONE

    def CollectionExists(self, request: Any, context: Any) -> Any:
        exists = self.client.collection_exists(request.collection_name)
        return q.CollectionExistsResponse(result=q.CollectionExists(exists=exists))

    def Get(self, request: Any, context: Any) -> Any:
        if isinstance(request, q.GetCollectionInfoRequest):
            return self._info(request)
        records = self.client.retrieve(
            request.collection_name,
            [GrpcToRest.convert_point_id(id) for id in request.ids],
            with_payload=GrpcToRest.convert_with_payload_selector(request.with_payload),
            with_vectors=GrpcToRest.convert_with_vectors_selector(request.with_vectors),
        )
        return q.GetResponse(result=[RestToGrpc.convert_record(record) for record in records])

    def _info(self, request: Any) -> Any:
        info = RestToGrpc.convert_collection_info(self.client.get_collection(request.collection_name))
        kept = self.settings[request.collection_name]
        params = info.config.params
        params.shard_number = kept.shard_number or 1
        params.replication_factor = kept.replication_factor or 1
        params.write_consistency_factor = kept.write_consistency_factor or 1
        for name, own in params.vectors_config.params_map.map.items():  # local mode keeps less of them than it got
            if name in kept.vectors_config.params_map.map:
                own.CopyFrom(kept.vectors_config.params_map.map[name])
        return q.GetCollectionInfoResponse(result=info)

    def CreateVectorName(self, request: Any, context: Any) -> Any:
        if request.HasField("dense_config"):
            dense = request.dense_config
            config: Any = models.DenseVectorNameConfig(
                dense=models.DenseVectorConfig(
                    size=dense.size,
                    distance=GrpcToRest.convert_distance(dense.distance),
                    multivector_config=GrpcToRest.convert_multivector_config(dense.multivector_config),
                )
            )
            kept = self.settings[request.collection_name].vectors_config.params_map.map[request.vector_name]
            kept.size, kept.distance = dense.size, dense.distance
            kept.multivector_config.CopyFrom(dense.multivector_config)
        else:
            config = models.SparseVectorNameConfig(sparse=models.SparseVectorParams(modifier=models.Modifier.IDF))
        self.client.create_vector_name(request.collection_name, request.vector_name, config)
        return DONE

    def UpdateAliases(self, request: Any, context: Any) -> Any:
        try:
            self.client.update_collection_aliases([GrpcToRest.convert_alias_operations(one) for one in request.actions])
        except ValueError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Not found: {error}")
        return q.CollectionOperationResponse(result=True)

    def ListCollectionAliases(self, request: Any, context: Any) -> Any:
        found = self.client.get_collection_aliases(request.collection_name).aliases
        return q.ListAliasesResponse(aliases=[RestToGrpc.convert_alias_description(one) for one in found])

    def List(self, request: Any, context: Any) -> Any:
        return q.ListCollectionsResponse()

    def CreateFieldIndex(self, request: Any, context: Any) -> Any:
        return DONE

    # -- points

    def Upsert(self, request: Any, context: Any) -> Any:
        only_if = GrpcToRest.convert_filter(request.update_filter) if request.HasField("update_filter") else None
        points = [GrpcToRest.convert_point_struct(point) for point in request.points]
        self.client.upsert(request.collection_name, points, update_filter=only_if)
        return DONE

    def UpdateVectors(self, request: Any, context: Any) -> Any:
        points = [GrpcToRest.convert_point_vectors(point) for point in request.points]
        self.client.update_vectors(request.collection_name, points)
        return DONE

    def DeleteVectors(self, request: Any, context: Any) -> Any:
        selector = GrpcToRest.convert_points_selector(request.points_selector)
        self.client.delete_vectors(request.collection_name, list(request.vectors.names), selector)
        return DONE

    def UpdateBatch(self, request: Any, context: Any) -> Any:
        operations = [GrpcToRest.convert_points_update_operation(one) for one in request.operations]
        self.client.batch_update_points(request.collection_name, operations)
        return q.UpdateBatchResponse(result=[DONE.result] * len(operations))

    def Scroll(self, request: Any, context: Any) -> Any:
        records, offset = self.client.scroll(
            request.collection_name,
            GrpcToRest.convert_filter(request.filter) if request.HasField("filter") else None,
            limit=request.limit,
            offset=GrpcToRest.convert_point_id(request.offset) if request.HasField("offset") else None,
            with_payload=GrpcToRest.convert_with_payload_selector(request.with_payload),
        )
        following = None if offset is None else RestToGrpc.convert_extended_point_id(offset)
        return q.ScrollResponse(
            result=[RestToGrpc.convert_record(record) for record in records], next_page_offset=following
        )

    def Count(self, request: Any, context: Any) -> Any:
        some = GrpcToRest.convert_filter(request.filter) if request.HasField("filter") else None
        return q.CountResponse(result=q.CountResult(count=self.client.count(request.collection_name, some).count))

    def Facet(self, request: Any, context: Any) -> Any:
        some = GrpcToRest.convert_filter(request.filter) if request.HasField("filter") else None
        hits = self.client.facet(request.collection_name, request.key, some, limit=request.limit).hits
        return q.FacetResponse(hits=[RestToGrpc.convert_facet_value_hit(hit) for hit in hits])

    def Query(self, request: Any, context: Any) -> Any:
        batch = q.QueryBatchPoints(collection_name=request.collection_name, query_points=[request])
        return q.QueryResponse(result=self.QueryBatch(batch, context).result[0].result)

    def QueryBatch(self, request: Any, context: Any) -> Any:
        asked = [GrpcToRest.convert_query_points(one) for one in request.query_points]
        answers = self.client.query_batch_points(request.collection_name, asked)
        return q.QueryBatchResponse(
            result=[
                q.BatchResult(result=[RestToGrpc.convert_scored_point(point) for point in one.points])
                for one in answers
            ]
        )


class Gate(grpc.ServerInterceptor):
    """What every request passes: the key, the failures to order, and the count of bytes."""

    def __init__(self, standin: Standin, key: str | None) -> None:
        self.standin, self.key, self.lock = standin, key, threading.Lock()

    def intercept_service(self, go_on: Callable[..., Any], details: Any) -> Any:
        handler = go_on(details)
        method = details.method.rsplit("/", 1)[1]
        key = dict(details.invocation_metadata).get("api-key")

        def answer(request: Any, context: Any) -> Any:
            with self.lock:  # local mode is for one thread
                self.standin.asked.append(method)
                self.standin.largest = max(self.standin.largest, request.ByteSize())
                if self.key is not None and key != self.key:
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "Invalid API key")
                if code := self.standin.fail(method):
                    context.abort(code, "as ordered")
                if getattr(request, "collection_name", None) in self.standin.lost:
                    context.abort(grpc.StatusCode.INTERNAL, NODE_AWAY)
                try:
                    reply = handler.unary_unary(request, context)
                except ValueError as error:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                if self.standin.lose(method):
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost, as ordered")
                return reply

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )


@contextmanager
def serving(
    key: str | None = None,
    version: str = "1.20.0",
    port: int = 0,
    tls: grpc.ServerCredentials | None = None,
) -> Iterator[tuple[Standin, int]]:
    """Serve in threads of this process; yield the stand-in and its port."""
    standin = Standin(version)
    options = [("grpc.max_receive_message_length", LIMIT), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(4), interceptors=[Gate(standin, key)], options=options)
    for add in (add_PointsServicer_to_server, add_CollectionsServicer_to_server, add_QdrantServicer_to_server):
        add(standin, server)
    place = f"127.0.0.1:{port}"
    port = server.add_secure_port(place, tls) if tls else server.add_insecure_port(place)
    server.start()
    try:
        yield standin, port
    finally:
        server.stop(grace=None).wait()


if __name__ == "__main__":  # for trying commands by hand
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=6334)
    warnings.simplefilter("ignore")
    with serving(port=parser.parse_args().port) as (_, chosen):
        print(chosen, flush=True)
        threading.Event().wait()
