"""Add the ledger of a store on S3: the chunks of open uploads, where contents lie, and what is put away.

Revision: 0011
"""

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import DATETIME

from uploader.database import migrate

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime().with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def bytewise(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.VARBINARY(length).with_variant(sa.LargeBinary(), "sqlite")


def upgrade() -> None:
    migrate.create_table(
        "multipart",
        sa.Column("upload_id", bytewise(32), primary_key=True),
        sa.Column("multipart_id", bytewise(1024)),
        sa.Column("fence", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("frozen", sa.Boolean, nullable=False, server_default=sa.text("0")),
        sa.Column("appender", bytewise(32)),
        sa.Column("tail_key", bytewise(255)),
        sa.Column("tail_number", sa.BigInteger),
        sa.Column("tail_length", sa.BigInteger),
        sa.Column("digest_position", sa.BigInteger),
        sa.Column("digest_state", sa.LargeBinary),
        sa.Column("digest_md5", bytewise(32)),
        sa.Column("digest_sha256", bytewise(64)),
        sa.Column("opened_at", MOMENT, nullable=False),
        sa.Column("written_at", MOMENT, nullable=False),
    )
    migrate.create_index("ix_multipart_opened", "multipart", "opened_at", "upload_id")
    migrate.create_index("ix_multipart_tail", "multipart", "tail_key")
    migrate.create_table(
        "chunk",
        sa.Column("upload_id", bytewise(32), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("etag", bytewise(255), nullable=False),
        sa.Column("object_key", bytewise(255)),
        sa.Column("created_at", MOMENT, nullable=False),
    )
    migrate.create_index("ix_chunk_key", "chunk", "object_key")
    migrate.create_table(
        "piece",
        sa.Column("whole_id", bytewise(32), primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("object_key", bytewise(255), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
    )
    migrate.create_index("ix_piece_key", "piece", "object_key")
    migrate.create_table(
        "put_away",
        sa.Column("object_key", bytewise(255), primary_key=True),
        sa.Column("name", bytewise(64), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
    )
    migrate.create_index("ix_put_away_name", "put_away", "name")
    migrate.create_index("ix_blob_location", "blob", "location")


def downgrade() -> None:
    migrate.drop_index("ix_blob_location", "blob")
    migrate.drop_table("put_away")
    migrate.drop_table("piece")
    migrate.drop_table("chunk")
    migrate.drop_table("multipart")
