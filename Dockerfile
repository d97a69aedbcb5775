# The server, with S3 and Kafka. Alone it brings its own Valkey and SQLite, and keeps everything in the volume:
#
#   docker build -t uploader .
#   docker run -d --name uploader --init --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#     -v uploader:/data -p 127.0.0.1:8000:8000 uploader
#
# The libraries are pinned by their hashes, and the base by its version; `--build-arg BASE=python:3.14-slim@sha256:…` pins it by its digest.
ARG BASE=python:3.14-slim

FROM ${BASE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends binutils
COPY docs/constraints.txt /src/docs/
RUN python -m venv --without-pip /opt/uploader \
    && pip --python /opt/uploader install --no-cache-dir --require-hashes -r /src/docs/constraints.txt
COPY LICENSE README.md pyproject.toml /src/
COPY migrations /src/migrations
COPY uploader /src/uploader
RUN pip --python /opt/uploader install --no-cache-dir --no-deps /src
# What nothing at work reads: symbols for debuggers, sources in C, and of the SDK all services but S3 and what signs in to it.
RUN cd /opt/uploader/lib/python3.*/site-packages \
    && find . -name '*.so*' -type f -exec strip --strip-debug {} + \
    && find . -name '*.c' -delete -o -name '*.pyx' -delete -o -name '*.pxd' -delete \
    && find botocore/data -mindepth 1 -maxdepth 1 -type d ! -name s3 ! -name sts ! -name 'sso*' ! -name signin -exec rm -r {} +

FROM ${BASE}
COPY --from=build /opt/uploader /opt/uploader
# A new named volume takes over the owner and the mode of the directory it is mounted on.
RUN useradd --uid 10001 --user-group --no-create-home uploader \
    && install -d -m 700 -o uploader -g uploader /data
ENV PATH=/opt/uploader/bin:/usr/local/bin:/usr/bin:/bin UPLOADER_DATA=/data
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
CMD ["uploader", "serve", "--host", "0.0.0.0"]
