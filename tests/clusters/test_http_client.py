from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from state_pipelines.errors import ClusterError, NotFoundError, StateError, UsageError
from state_pipelines.flink.http_client import ATTEMPTS, Credentials, HttpClient, Timeouts
from tests.clusters.servers import BREAK, WAIT, Server, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "geh3im-4711"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def open_client(server: Server, credentials: Credentials | None = None, timeouts: Timeouts | None = None) -> HttpClient:
    return HttpClient(server.url, credentials, timeouts, sleep=lambda seconds: None)


def test_a_leader_election_is_waited_for(server: Server) -> None:
    electing = (503, {"errors": ["Service temporarily unavailable due to an ongoing leader election. Please refresh."]})
    server.on("GET /overview", electing, electing, {"taskmanagers": 1})
    assert open_client(server).get("/overview") == {"taskmanagers": 1}
    assert server.count("GET /overview") == 3


@pytest.mark.slow
def test_a_leader_that_is_not_elected_is_an_error_that_may_pass(server: Server) -> None:
    server.on("GET /overview", (503, {"errors": ["Service temporarily unavailable"]}))
    with pytest.raises(ClusterError, match="Service temporarily unavailable") as caught:
        open_client(server).get("/overview")
    assert caught.value.transient
    assert server.count("GET /overview") == ATTEMPTS


def test_what_is_not_idempotent_is_sent_once_and_stays_in_doubt(server: Server) -> None:
    server.on("POST /jars/a/run", BREAK)
    with pytest.raises(ClusterError, match="broke") as caught:
        open_client(server).send("POST", "/jars/a/run", {}, is_idempotent=False)
    assert caught.value.is_in_doubt
    assert server.count("POST /jars/a/run") == 1


def test_what_is_idempotent_is_sent_again(server: Server) -> None:
    server.on("POST /jobs/a/stop", BREAK, (502, b"<html>bad gateway</html>"), {"request-id": "1"})
    assert open_client(server).send("POST", "/jobs/a/stop", {}, is_idempotent=True).content == {"request-id": "1"}
    assert server.count("POST /jobs/a/stop") == 3


def test_a_slow_endpoint_is_said_to_be_slow(server: Server) -> None:
    server.on("POST /jobs/a/stop", WAIT)
    client = open_client(server, timeouts=Timeouts(read=0.05))
    with pytest.raises(ClusterError, match=r"is slow: no complete answer within 0\.05 s") as caught:
        client.send("POST", "/jobs/a/stop", {}, is_idempotent=False)
    assert (caught.value.transient, caught.value.is_in_doubt) == (True, True)


def test_an_endpoint_that_is_not_there_was_sent_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        pauses: list[float] = []
        client = HttpClient(url, sleep=pauses.append)
        with pytest.raises(ClusterError, match=f"Flink at {url} cannot be reached: Connection refused") as caught:
            client.send("POST", "/jars/a/run", {}, is_idempotent=False)
    assert (caught.value.transient, caught.value.is_in_doubt) == (True, False)
    assert pauses == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (200, b"<html><head><title>Sign in - Acme</title></head></html>"),
            "answers with a web page .'Sign in - Acme'.",
        ),
        ((200, b"upstream ok"), "answers with 'upstream ok' instead of JSON"),
        ((302, b""), "redirects to http://elsewhere:1/login"),
        ((500, b"<html><title>Bad day</title>"), "refuses GET /overview .HTTP 500.: a web page .'Bad day'."),
        ((401, {}), "denies access"),
    ],
)
def test_answers_that_are_not_flinks_are_errors(server: Server, answer: object, message: str) -> None:
    server.on("GET /overview", answer)
    with pytest.raises(ClusterError, match=message) as caught:
        open_client(server).get("/overview")
    assert caught.value.hint
    assert "abc123secret" not in str(caught.value)


def test_words_of_flink_come_without_frames(server: Server) -> None:
    stack = (
        "<Exception on server side:\njava.util.concurrent.CompletionException: "
        "org.apache.flink.util.FlinkException: no\n\tat a.B.c(B.java:1)\n"
        "Caused by: java.io.IOException: disk full\n\t... 3 more\n\nEnd of exception on server side>"
    )
    server.on("GET /jobs", (400, {"errors": ["Internal server error.", stack]}))
    with pytest.raises(ClusterError, match=r"\(HTTP 400\): IOException: disk full") as caught:
        open_client(server).get("/jobs")
    assert caught.value.details["flink"].splitlines() == [
        "org.apache.flink.util.FlinkException: no",
        "java.io.IOException: disk full",
    ]


def test_a_job_that_is_not_there_is_not_found(server: Server) -> None:
    server.on("GET /jobs/a", (500, {"errors": ["org.apache.flink.runtime.messages.FlinkJobNotFoundException: none"]}))
    for path in ("/jobs/a", "/jobs/b"):
        with pytest.raises(NotFoundError):
            open_client(server).get(path)


def test_credentials_are_sent_and_never_shown(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PASSWORD_OF_FLINK", SECRET)
    (tmp_path / "token").write_text(f"{SECRET}\n")
    server.on("GET /overview", {"ok": True}, (403, {"errors": ["no"]}))
    basic = Credentials(user="ann", password="${PASSWORD_OF_FLINK}", headers={"X-Key": SECRET})
    bearer = Credentials(token_file=str(tmp_path / "token"))
    open_client(server, basic).get("/overview")
    with pytest.raises(ClusterError) as caught:
        open_client(server, bearer).get("/overview")
    assert [each.headers["Authorization"] for each in server.received] == [
        "Basic YW5uOmdlaDNpbS00NzEx",
        f"Bearer {SECRET}",
    ]
    assert server.received[0].headers["X-Key"] == SECRET
    shown = f"{basic!r} {bearer!r} {open_client(server, basic)!r} {caught.value} {caught.value.details}"
    assert SECRET not in shown


def test_a_variable_that_is_not_set_is_named(server: Server) -> None:
    with pytest.raises(UsageError, match="NO_SUCH_TOKEN"):
        open_client(server, Credentials(token="${NO_SUCH_TOKEN}")).get("/overview")
    with pytest.raises(UsageError, match="X-Key"):
        open_client(server, Credentials(headers={"X-Key": "a\r\nb: c"})).get("/overview")
    assert not server.received


@pytest.mark.parametrize(
    "endpoint", ["jobmanager:8081", "ftp://host", "http://", "http://a:99999", "http://ann:pw@host", "http://h/?key=1"]
)
def test_an_address_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError) as caught:
        HttpClient(endpoint)
    assert "pw" not in str(caught.value)


def make_certificate(directory: Path) -> tuple[Path, ssl.SSLContext]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "flink")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(1))
        .not_valid_after(now + datetime.timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = directory / "flink.pem"
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return path, context


@pytest.mark.slow
def test_certificates_are_verified(tmp_path: Path) -> None:
    path, context = make_certificate(tmp_path)
    with serving(context) as server:
        server.on("GET /overview", {"ok": True})
        trusted = Credentials(ca_certificates=str(path), client_certificate=str(path))
        assert open_client(server, trusted).get("/overview") == {"ok": True}
        with pytest.raises(ClusterError, match="no TLS connection to") as caught:
            open_client(server).get("/overview")
        assert "ca_certificates" in caught.value.hint
    with pytest.raises(UsageError, match="certificates"):
        HttpClient("https://flink", Credentials(ca_certificates=str(tmp_path / "none.pem")))


def test_an_upload_is_streamed_as_a_form(server: Server, tmp_path: Path) -> None:
    jar = tmp_path / "job.jar"
    jar.write_bytes(b"PK" + bytes(3_000_000))
    server.on("POST /jars/upload", BREAK, {"filename": "x"})
    client = open_client(server)
    client.send("POST", "/jars/upload", is_idempotent=True, upload=("job-1.jar", jar))
    assert jar.read_bytes() in server.received[1].body
    assert b'filename="job-1.jar"' in server.received[1].body
    with pytest.raises(StateError, match="cannot be read"):
        client.send("POST", "/jars/upload", is_idempotent=True, upload=("none.jar", tmp_path / "none.jar"))
