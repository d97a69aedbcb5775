"""The SDK's clients, set up: what is asked of them for every call. The only module that loads boto3, and only in its calls.

There are two, because the SDK has its time-outs by client. A request waits for answers to questions, which a server that is
not silent gives at once; to store, to join and to remove bytes takes what it takes.
"""

import base64
import hashlib
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from uploader.addresses import BucketAddress
from uploader.errors import ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

CONNECT_TIMEOUT_SECONDS = 5.0
# How long a server may say nothing.
READ_TIMEOUT_SECONDS, BRIEF_TIMEOUT_SECONDS = 60.0, 10.0
# The first one counts, too.
_ATTEMPTS, _BRIEF_ATTEMPTS = 3, 2
# So many threads talk at once without a connection being made and closed for a call.
MAX_CONNECTIONS = 64


def check_installed() -> None:
    """Raises ConfigurationError if the SDK is not here."""
    if find_spec("boto3") is None:
        raise ConfigurationError("UPLOADER_STORAGE: a store on S3 needs boto3: install `uploader-kit[s3]`")


def make_client(address: BucketAddress, *, brief: bool = False) -> "S3Client":
    """It may be used by many threads. `brief`: for questions. Raises what the SDK raises."""
    import boto3
    import botocore.session
    from botocore.config import Config

    options: Any = {
        "addressing_style": "path" if address.path_style else "auto",
        # The server compares what arrives with the SHA-256 that was signed. With TLS the SDK would leave that out; an MD5
        # in its place costs more where the processor knows SHA-256.
        "payload_signing_enabled": True,
    }
    config = Config(
        signature_version="s3v4",
        s3=options,
        # Servers other than AWS don't know the checksums that the SDK would add by itself, in trailers.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"mode": "standard", "total_max_attempts": _BRIEF_ATTEMPTS if brief else _ATTEMPTS},
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=BRIEF_TIMEOUT_SECONDS if brief else READ_TIMEOUT_SECONDS,
        max_pool_connections=MAX_CONNECTIONS,
        tcp_keepalive=True,
    )
    # A session of its own: the one that boto3 shares may not be used by several threads.
    core = botocore.session.Session()
    core.register_component("data_loader", _loader())
    session = boto3.session.Session(
        botocore_session=core,
        aws_access_key_id=address.access_key_id,
        aws_secret_access_key=address.secret_access_key,
        region_name=address.region,
    )
    client = session.client("s3", endpoint_url=address.endpoint, config=config)
    # It has to be there on all servers but AWS, and the SDK leaves it out.
    client.meta.events.register("before-call.s3.DeleteObjects", _add_md5)
    return client


@cache
def _loader() -> Any:
    """What the SDK knows of its services: to read that takes most of the time that a client takes to be made."""
    import botocore.session

    return botocore.session.Session().get_component("data_loader")


def _add_md5(params: dict[str, Any], **_: Any) -> None:
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()
