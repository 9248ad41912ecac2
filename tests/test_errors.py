from __future__ import annotations

import pickle
import re
import time
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import StateError, StorageError, Where, at
from state_pipelines.redaction import redact, redact_path

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://token@host/a", "https://…@host/a"),
        ("s3:/key:secret@bucket/a", "s3:/…@bucket/a"),
        ("https://host/a#access_token=abc", "https://host/a?…"),
        ("abfs://container@account/a", "abfs://container@account/a"),
        ("abfss://container@account.dfs.core.windows.net:443/a:b@c", None),
        ("wasbs://$root@account.blob.core.windows.net/a", None),
        ("abfss://container:pass/word@account/a", "abfss://…@account/a"),
        ("abfss://Tok3n@account/a", "abfss://…@account/a"),
        ("s3://AKIA:SEC/RET@bucket/x", "s3://…@bucket/x"),
        ("s3:/AKIA:S://EC/@RET@bucket/x", "s3:/…@bucket/x"),
        ("cannot reach 'https://u:SEC/RET@127.0.0.1:1/x'.", "cannot reach 'https://…@127.0.0.1:1/x'."),
        ("--map s3://AKIA:SEC/RET@a=https://t0ken@b/x", "--map s3://…@b/x"),
        ("s3://AKIA:SE?C/RET@bucket/x", "s3://…@…"),
        ("s3://AKIA:SE#CRET@bucket/x", "s3://…@…"),
        ("https://to?ken@host/x", "https://…@…"),
        ("https://host:80/a?mail=a@b&sig=1", "https://…@…"),
        ("https://host?mail=a@b&sig=1", "https://…@…"),
        ("https://host/it's?a='b'&sig=1", "https://host/it's?…"),
        ("hdfs://tok3n@h/x", "hdfs://…@h/x"),
        ("HDFS://tok3n@h:8020/x", "HDFS://…@h:8020/x"),
        ("sftp://tok3n@h/x and gs://tok3n@b", "sftp://…@h/x and gs://…@b"),
        ("myfile://tok3n@h/x", "myfile://…@h/x"),
        ("s3://bucket/a:b@c/x", None),
        ("s3://arn:aws:s3:us-west-2:123456789012:accesspoint/name/a@b", None),
        ("hdfs://namenode:8020/flink/chk-1", None),
        ("file:///a@b/c#d?e", None),
        ("file:/data/a:b@c", None),
        ("/data/a:b@c/x", None),
        ("is it https://host/a?", None),
        ("{'key': 'AKIA', 'secret': 'abc', 'token': 'abc'}", "{'key': 'AKIA', 'secret': '…', 'token': '…'}"),
        ("aws_secret_access_key=abc&session_token=abc", "aws_secret_access_key=…&session_token=…"),
        ("unexpected token: end", "unexpected token: end"),
        ("state token: elements may be missing", None),
        ("operator secret: 3 rows, my.token: 5 rows, Authorization: 7 rows", None),
        ("fs.s3a.secret.key=abc and s3.access-key: abc, then", "fs.s3a.secret.key=… and s3.access-key: …, then"),
        ("fs.azure.account.key.a.blob.core.windows.net: abc==", "fs.azure.account.key.a.blob.core.windows.net: …"),
        ("api_key=abc x-api-key=abc sas=abc pwd=abc sv=1&sig=abc", "api_key=… x-api-key=… sas=… pwd=… sv=1&sig=…"),
        ("design=1 isolation.sasl=2 sigma=3", None),
        ("secret='a b c', token=\"it's\" x", "secret='…', token=\"…\" x"),
        ("{'token': 'a\\'b c'}", "{'token': '…'}"),
        ("Authorization: Bearer abc, Basic", "Authorization: …, Basic"),
        ("{'Authorization': 'Bearer abc', b'Authorization': b'abc'}", "{'Authorization': '…', b'Authorization': b'…'}"),
        ("authorization=Bearer abc def", "authorization=… def"),
        ('{\\"secret\\": \\"a b\\"}', '{\\"secret\\": \\"…'),
        ("/data/savepoint-1a2b/_metadata", "/data/savepoint-1a2b/_metadata"),
    ],
)
def test_secrets_are_removed_from_texts(text: str, shown: str | None) -> None:
    shown = text if shown is None else shown
    assert redact(text) == shown
    assert redact(shown) == shown


SPELLINGS = (
    "aws_secret_access_key = X",
    "AWS_SECRET_ACCESS_KEY=X",
    "AWS_SESSION_TOKEN: X",
    "x-amz-security-token: X",
    "x-amz-security-token=X",
    "X-Api-Key: X",
    "apikey: X",
    "apiKey=X",
    "api_key = X",
    "password: X",
    "Password: 'X'",
    "password = X",
    "passwd: X",
    "PWD: X",
    "accountKey: X",
    "AccountKey=X==;",
    "id_token: X",
    "id_token=X",
    "refresh_token: X",
    "clientSecret: X",
    "Cookie: session=X",
    "Set-Cookie: id=1; session=X; Path=/",
    "<SecretAccessKey>X</SecretAccessKey>",
    "<ns:SessionToken>X</ns:SessionToken>",
    '{"credentials": {"secret": "X", "token": "X"}}',
    '{\\"a\\": {\\"secret\\": \\"X\\"}}',
    "{key: AK, secret: X}",
    "secretKey: X",
    "-----BEGIN PRIVATE KEY-----\nX\nX\n-----END PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY----- X",
    '"key": "-----BEGIN EC PRIVATE KEY-----\\nX\\n-----END EC PRIVATE KEY-----\\n"',
    "https%3A%2F%2Fuser%3AX%40host%2Fa",
    "url=https%3A%2F%2Fh%2Fa%3Fsig%3DX",
    "s3%253A%252F%252Fk%253AX%2540b",
    "Authorization: X",
    "Proxy-Authorization: Basic X",
    "sent Bearer X",
    "X-Vault-Token: X",
    "x-ms-authorization: X",
    "--password X",
    "--secret-key=X",
    "jdbc:postgresql://h/db?user=u&password=X",
    "sas_token: X",
    "connection_string: X",
    "HTTPHeaders: {'x-amz-security-token': 'X'}",
)


@pytest.mark.parametrize("text", SPELLINGS)
def test_each_spelling_of_a_secret_is_known(text: str) -> None:
    for secret in ("hunter2+/1", "hunter2hunter2"):
        shown = redact(re.sub(r"\bX(?!-)\b", secret, text))
        assert "hunter2" not in shown
        assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "state password: 3 entries",
        "operator api_key: the state secret: 3 rows",
        "field access_token: a string is expected, not 12 bytes",
        "unexpected token: ]3",
        "token: may be missing",
        "the token of the request has expired: renew it",
        "key group 3: 1,000 keys, key: order-1",
        "secret: rows are missing",
        "https%3A%2F%2Fhost%2Fa%20b",
        "100%3A of 5",
        "<token> is not closed, <state>x</state>",
        "Bearer is no scheme",
        "-----BEGIN CERTIFICATE----- abc -----END CERTIFICATE-----",
        "cookies: 3 rows",
        "a--token b",
        "class PasswordSerializer: version 3",
        "--map FROM=TO moves them, --uid NAME names them",
    ],
)
def test_texts_without_secrets_stay_readable(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("blank", [" ", "\t", "\u00a0", "\u2028", "\n"])
def test_blanks_in_a_path_are_characters_of_its_password(blank: str) -> None:
    path = f"http://u:hunt{blank}er2@127.0.0.1:1/a{blank}b?sig=hunt{blank}er2"
    assert redact_path(path) == f"http://…@127.0.0.1:1/a{blank}b?…"
    for shown in (redact_path(path), str(Where(file=path)), str(StorageError("no answer", where=Where(file=path)))):
        assert "hunt" not in shown
        assert "er2" not in shown
    assert redact_path(f"hdfs://u:hunt{blank}er2@h/a{blank}b") == f"hdfs://…@h/a{blank}b"


@pytest.mark.parametrize("path", ["/data/a b@c:d", "s3://bucket/a b:c@d", "file:///a b?c@d", "hdfs://h:8020/a b"])
def test_blanks_in_a_path_without_a_password_change_nothing(path: str) -> None:
    assert redact_path(path) == path


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "secret='" + "x" * 250_000,
        "secret='a' " * 25_000,
        "s3.a" * 75_000 + ": ",
        "authorization: " * 25_000,
        "token" + " " * 250_000 + ":",
        "secret=\\'" * 25_000,
        "secret" + "\\" * 250_000,
        "fs.secret: Bearer" + " " * 250_000,
        "-" * 250_000 + "=",
        "-----BEGIN PRIVATE KEY-----" * 10_000,
        "%3A%2F%2F" * 25_000,
        "<token" * 50_000,
        "secret: " + "x" * 250_000,
        "token: x " * 25_000,
        "--token " * 25_000,
    ],
    ids=range(15),
)
def test_long_options_take_time_in_proportion_to_their_length(text: str) -> None:
    before = time.process_time()
    redact(text)
    assert time.process_time() - before < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "secret" * 50_000 + " a: b",
        "a://" * 75_000,
        "a:" * 125_000 + "//",
        "secret'" + " " * 250_000,
        "://a:b" * 50_000,
    ],
    ids=["option", "schemes", "colons", "blanks", "users"],
)
def test_long_names_take_time_in_proportion_to_their_length(text: str) -> None:
    assert redact(text) == text
    assert redact(f"{text} password=hunter2 https://host/a?sig=hunter2") == f"{text} password=… https://host/a?…"


@pytest.mark.parametrize(
    "name",
    [
        "secret",
        "password",
        "passwd",
        "token",
        "signature",
        "credential",
        "access_key",
        "accountkey",
        "sas_key",
        "accesskey",
        "account_key",
        "saskey",
        "authorization",
    ],
)
@pytest.mark.parametrize("change", [str.lower, str.upper, lambda name: f"x_{name}_y"])
def test_each_name_of_a_secret_option_is_known(name: str, change: Callable[[str], str]) -> None:
    assert redact(f"{change(name)}=hunter2") == f"{change(name)}=…"
    assert redact(f"'{change(name)}': 'hunter2'") == f"'{change(name)}': '…'"


@pytest.mark.slow
@pytest.mark.parametrize("part", ["://a:b@", "s3://a:b/@", "http://", "a://t@h/", "abfs://c@a/", "file:/a:"])
def test_many_urls_in_a_word_take_time_in_proportion_to_its_length(part: str) -> None:
    assert "hunter2" not in redact(part * 50_000 + "https://user:hunter2@host?hunter2")


def test_errors_say_no_secrets() -> None:
    url = "s3://AKIA:hunter2@host/a?signature=hunter2"
    error = StorageError(f"no answer of {url}", where=Where(file=url), hint=f"Look at {url}")
    with pytest.raises(StateError) as caught, at(operator="orders"):
        raise error
    assert "hunter2" not in "".join((str(caught.value), repr(caught.value), caught.value.what, str(error.where.file)))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
