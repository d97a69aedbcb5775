"""What is the same on any database: tests that run on SQLite alone.

They are about sockets, parsers, pages and clients, and have the server do nothing that others do not have it do as well, on
each of the databases.
"""

MODULES = frozenset(
    {
        *("test_circles", "test_client_delta", "test_client_downloading", "test_client_folders", "test_client_many"),
        *("test_client_room", "test_client_uploading", "test_frontier", "test_http_callers", "test_http_errors"),
        *("test_http_jwt", "test_http_links", "test_http_origins", "test_http_pages", "test_http_sockets"),
        *(
            "test_kafka",
            "test_local_storage",
            "test_mount",
            "test_never_finished",
            "test_request_log",
            "test_rufh_sockets",
        ),
        *("test_redis_rights", "test_refusing_redis"),
        *("test_s3_downloads", "test_s3_installation", "test_s3_store", "test_sendfile", "test_tls"),
    }
)
