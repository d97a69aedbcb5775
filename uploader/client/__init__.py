"""The Python client: uploads that resume, files, downloads that resume. Imports nothing of the server but its pure parts.

```python
with Client("https://uploads.example.org", token) as client:
    file = client.upload("holiday.mp4", "videos/holiday.mp4", on_progress=print)
    client.download(file, "copy.mp4")
```
"""

from uploader.client.asynchronous import AsyncClient
from uploader.client.errors import (
    AmbiguousName,
    BadAnswer,
    Cancelled,
    ClientError,
    ContentDiffers,
    FileChanged,
    InvalidName,
    LeadsOutside,
    NotFound,
    QuotaExceeded,
    ServerProblem,
    ServerTooOld,
    Stopped,
    TargetBusy,
    TargetExists,
    Unauthenticated,
    Unreachable,
    Unreadable,
    Unwritable,
)
from uploader.client.fetching.targets import Wanted
from uploader.client.many.files import LocalFile, Outcome, Watcher
from uploader.client.model import File, FilePage, Folder, How, IfExists, Upload, Usage
from uploader.client.synchronous import Client, Transfer
from uploader.client.transfers.progress import Progress
from uploader.client.transfers.transfer import AsyncTransfer
from uploader.client.transport import Patience

__all__ = [
    "AmbiguousName",
    "AsyncClient",
    "AsyncTransfer",
    "BadAnswer",
    "Cancelled",
    "Client",
    "ClientError",
    "ContentDiffers",
    "File",
    "FileChanged",
    "FilePage",
    "Folder",
    "How",
    "IfExists",
    "InvalidName",
    "LeadsOutside",
    "LocalFile",
    "NotFound",
    "Outcome",
    "Patience",
    "Progress",
    "QuotaExceeded",
    "ServerProblem",
    "ServerTooOld",
    "Stopped",
    "TargetBusy",
    "TargetExists",
    "Transfer",
    "Unauthenticated",
    "Unreachable",
    "Unreadable",
    "Unwritable",
    "Upload",
    "Usage",
    "Wanted",
    "Watcher",
]
