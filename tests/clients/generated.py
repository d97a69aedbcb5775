"""A client that was generated from the server's description: sends the bytes of standard input as a file."""

import os
import sys
from io import BytesIO

from uploader_client import AuthenticatedClient
from uploader_client.api.files import get_me_files_id, get_me_files_id_content
from uploader_client.api.uploading import post_uploads, put_uploads_id_chunks_n
from uploader_client.models import FileState, OpenState, OpenUpload, Problem
from uploader_client.types import File

content = sys.stdin.buffer.read()
with AuthenticatedClient(os.environ["SERVER"], os.environ["TOKEN"]) as client:
    opened = post_uploads.sync(client=client, body=OpenUpload(name="openapi-python-client", size=len(content)))
    assert isinstance(opened, OpenState), opened
    upload = opened.upload
    for number in range(upload.chunk_count):
        chunk = content[number * upload.chunk_size : (number + 1) * upload.chunk_size]
        sent = put_uploads_id_chunks_n.sync(upload.id, number, client=client, body=File(BytesIO(chunk)))
    assert isinstance(sent, FileState), sent
    read = get_me_files_id_content.sync_detailed(sent.file.id, client=client)
    assert read.content == content
    refused = get_me_files_id.sync("nothing", client=client)
    assert isinstance(refused, Problem), refused
    assert refused.code == "file-not-found"
