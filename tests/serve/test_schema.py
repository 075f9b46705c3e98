"""Whatever the schema allows, and much that it does not, is answered as the schema says: never with a 5xx."""

from __future__ import annotations

import uuid
import warnings
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings

from randslot.serve.access import LOCAL, Access
from randslot.serve.app import make_app
from support.services import documents

pytestmark = [pytest.mark.xdist_group("schema"), pytest.mark.slow]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations among its own dependencies
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ENDPOINTS = 27
QUICK = settings(
    max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def schema(service):
    return schemathesis.openapi.from_asgi("/openapi.json", make_app(service, Access(hosts=LOCAL | {"testserver"})))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", GenerationMode)
def test_no_endpoint_fails(schema, client, mode):
    id = documents(client)["alpha.pdf"]["id"]
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == ENDPOINTS
    for operation in operations:
        raw = operation.definition.raw
        if mode.is_positive or "parameters" in raw or "requestBody" in raw:
            is_removing = operation.method.lower() == "delete"  # what the others are asked about
            attack(operation.as_strategy(mode), str(uuid.uuid4()) if is_removing else id)


def attack(cases, id: str) -> None:
    """Send many requests; half of the ids become that of a real document, so that what lies behind is reached."""

    @QUICK
    @given(case=cases)
    def send(case) -> None:
        if "id" in case.path_parameters and crc32(repr(case.path_parameters).encode()) % 2:
            case.path_parameters["id"] = id
        if isinstance(case.body, dict) and "document" in case.body and crc32(repr(case.body).encode()) % 2:
            case.body["document"] = id
        case.call_and_validate(checks=CHECKS)

    send()


def test_a_whole_number_may_have_a_decimal_point(client):
    """JSON Schema knows no difference between 3 and 3.0."""
    assert len(client.post("/api/search", json={"query": "page", "k": 2.0, "offset": 1.0}).json()["hits"]) == 2
    for k in (2.5, "2", True):
        assert client.post("/api/search", json={"query": "page", "k": k}).status_code == 422
