"""The Python client: resumable uploads, files, resumable downloads. Imports only pure parts of the server.

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
    BadProxy,
    Cancelled,
    ClientError,
    ContentDiffers,
    FileChanged,
    HiddenName,
    InvalidName,
    LeadsOutside,
    LinkExhausted,
    LinkGone,
    NotFound,
    QuotaExceeded,
    ServerProblem,
    ServerTooOld,
    Stopped,
    TargetBusy,
    TargetExists,
    TooManyFiles,
    Unauthenticated,
    Unreachable,
    Unreadable,
    Unwritable,
    WrongPassword,
)
from uploader.client.files import LocalFile, Outcome, Wanted, Watcher
from uploader.client.model import (
    DeletedFile,
    File,
    FilePage,
    Folder,
    How,
    IfExists,
    Link,
    LinkFacts,
    LinkKind,
    Upload,
    Usage,
)
from uploader.client.pace import Patience
from uploader.client.synchronous import Client, Transfer
from uploader.client.transfer import AsyncTransfer, Progress
from uploader.client.worker import AsyncTask, Task, Worker

__all__ = [
    "AmbiguousName",
    "AsyncClient",
    "AsyncTask",
    "AsyncTransfer",
    "BadAnswer",
    "BadProxy",
    "Cancelled",
    "Client",
    "ClientError",
    "ContentDiffers",
    "DeletedFile",
    "File",
    "FileChanged",
    "FilePage",
    "Folder",
    "HiddenName",
    "How",
    "IfExists",
    "InvalidName",
    "LeadsOutside",
    "Link",
    "LinkExhausted",
    "LinkFacts",
    "LinkGone",
    "LinkKind",
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
    "Task",
    "TooManyFiles",
    "Transfer",
    "Unauthenticated",
    "Unreachable",
    "Unreadable",
    "Unwritable",
    "Upload",
    "Usage",
    "Wanted",
    "Watcher",
    "Worker",
    "WrongPassword",
]
