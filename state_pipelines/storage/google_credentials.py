"""Credentials of Google Cloud Storage, without a long wait for those that do not exist.

gcsfs without credentials asks the metadata server that Google's machines have, elsewhere for up to half a minute, and
reads as anybody then.
"""

from __future__ import annotations

import http.client
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

SCHEMES = frozenset({"gs", "gcs"})

_METADATA_SERVER = "169.254.169.254"
_PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")


def choose_token(options: dict[str, Any]) -> dict[str, Any]:
    """Add `token: anon` to options of gcsfs where there are no credentials; it reads public buckets.

    Credentials are those that google-auth and gcsfs find (https://google.aip.dev/auth/4110).
    """
    if options.get("token") is not None or _has_credentials_file() or _has_metadata_server():
        return options
    return {**options, "token": "anon"}


def _has_credentials_file() -> bool:
    if "GOOGLE_APPLICATION_CREDENTIALS" in os.environ:
        return True
    directory = Path(os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud")
    return (directory / "application_default_credentials.json").exists() or (Path.home() / ".gcs_tokens").exists()


def _has_metadata_server() -> bool:
    """Return whether this is a machine of Google, or its metadata server answers.

    A server may be slow at first, as in new pods: the name of the machine is enough, and google-auth asks again.
    """
    if os.environ.get("NO_GCE_CHECK") == "true":
        return False
    if not {"GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"}.isdisjoint(os.environ):
        return True
    try:
        if _PRODUCT_NAME.read_text().startswith("Google"):
            return True
    except (OSError, UnicodeDecodeError):
        pass
    return _answers(_METADATA_SERVER, minute=int(time.monotonic() // 60))


@cache
def _answers(server: str, minute: int) -> bool:
    """Ask a metadata server, once a minute."""
    timeout = os.environ.get("GCE_METADATA_TIMEOUT", "")
    connection = http.client.HTTPConnection(server, timeout=int(timeout) if timeout.isdigit() else 3)
    try:
        connection.request("GET", "/", headers={"Metadata-Flavor": "Google"})
        return connection.getresponse().getheader("Metadata-Flavor") == "Google"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
