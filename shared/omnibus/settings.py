"""Typed settings per area; each field is read from ``OMNIBUS_<AREA>_<FIELD>``, for example ``OMNIBUS_BUS_URL``.

The field's name or its comment contains the unit. ``read_settings(BusSettings)`` reads one area.
"""

import socket
from typing import ClassVar, Literal

from omnibus.environment import Settings as Settings
from omnibus.environment import read_settings as read_settings

#: See ``ServiceSettings.drain``.
DRAIN_SECONDS, GATEWAY_DRAIN_SECONDS = 10.0, 30.0


class BusSettings(Settings, frozen=True):
    """Connection to NATS, and retention in JetStream."""

    area: ClassVar[str] = "BUS"

    #: ``nats://host:port``, or ``tls://host:port`` for TLS. For a cluster, several with commas: a service uses one, and
    #: another after a failure.
    url: str = "nats://127.0.0.1:4222"
    #: User of the NATS server and its password; empty: those of the URL, or none.
    user: str = ""
    password: str = ""
    #: PEM file of the authority that signed the server's certificate (empty: no TLS), and this service's certificate
    #: and key, if the server requires them.
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    #: Seconds until an attempt to connect times out.
    connect_timeout: float = 10.0
    #: Servers of a cluster that store a copy of each stream. With 3 of three servers, the loss of one loses no data.
    replicas: int = 1
    #: Maximum bytes of a message, headers included, and at most ``max_payload`` of the NATS server. Larger inputs
    #: travel by handle.
    max_payload: int = 64 * 1024
    #: Seconds and bytes for which records of invocations are stored.
    record_seconds: float = 24 * 3600.0
    record_bytes: int = 1 << 30
    #: The same for dead letters (inputs that crashed or failed an engine), and for events of responses and sessions.
    dead_seconds: float = 7 * 24 * 3600.0
    dead_bytes: int = 64 << 20
    response_seconds: float = 3600.0
    response_bytes: int = 256 << 20


class StoreSettings(Settings, frozen=True):
    """Connection to Redis or Valkey."""

    area: ClassVar[str] = "STORE"

    #: Use ``rediss://user:password@host:port/0`` for TLS. For Sentinel, list the sentinels and their name of the
    #: servers: ``redis+sentinel://user:password@host:26379,host2:26379/mymaster/0``, or ``rediss+sentinel://``.
    url: str = "redis://127.0.0.1:6379/0"
    #: PEM file of the authority that signed the server's certificate (empty: those that this machine trusts), and this
    #: service's certificate and key, if the server requires them.
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    #: Signs plans and app records, which decide what code runs; the same for gateways and planners. If set, records
    #: without its signature are rejected; empty: all are accepted.
    secret: str = ""
    #: Prefix of all keys, so that several Omnibus can share a server.
    prefix: str = "omnibus"
    #: Seconds until a command times out.
    timeout: float = 2.0
    #: Plans in the store: the current one and earlier ones.
    history: int = 100


class SidecarSettings(Settings, frozen=True):
    """The node's arena: read by the sidecar, and by all services that use it."""

    area: ClassVar[str] = "SIDECAR"

    #: Unix socket on which the sidecar listens, and the name of this node (empty: its host name).
    socket: str = "/tmp/omnibus/sidecar.sock"
    node: str = ""
    #: MiB of shared memory for tensors.
    arena_mib: int = 256
    #: Overwrite freed blocks with zeros: slower, for nodes that several tenants share.
    clear: bool = False
    #: Address and port (0: a free one) for sidecars of other nodes; empty: no other nodes, and no port is open.
    host: str = ""
    port: int = 7400
    #: Address by which other nodes reach this one (empty: ``host``), and the file of the secret that all nodes share.
    advertise: str = ""
    secret_file: str = ""
    #: PEM files for TLS between nodes: the authority, and a certificate for the node's name, with its key.
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    #: Transport of large tensors between nodes: ``tcp``, or ``ucx`` for networks with RDMA (the extra ``ucx``; not with
    #: TLS).
    transport: Literal["tcp", "ucx"] = "tcp"
    #: Data connections to each other node, and the share of the arena for tensors of other nodes.
    links: int = 4
    incoming: float = 0.5
    #: Seconds to connect to another node, and without a byte or an answer until it is unreachable.
    connect: float = 2.0
    stall: float = 2.0

    @property
    def node_name(self) -> str:
        return self.node or socket.gethostname()


class GatewaySettings(Settings, frozen=True):
    """HTTP, limits, records, media, tenants and apps."""

    area: ClassVar[str] = "GATEWAY"

    #: Address and port for HTTP requests.
    host: str = "127.0.0.1"
    port: int = 8000
    #: PEM files of this server's certificate and key; empty: plain HTTP.
    tls_cert: str = ""
    tls_key: str = ""
    #: Seconds a request may take, unless the client sets a deadline.
    deadline: float = 120.0
    #: Largest HTTP body in bytes.
    max_body: int = 64 << 20
    #: Bytes of request bodies in progress before this gateway answers 429. Bodies up to 64 KiB do not count. With
    #: tenants, each has at most half.
    bodies: int = 1 << 30
    #: Seconds that a body may pause, and its minimum bytes per second after that time. The body must be complete before
    #: the deadline, which starts with its first byte.
    body_pause: float = 30.0
    body_rate: int = 1024
    #: Maximum bytes and lines of a request's headers, and seconds until they are complete. An idle connection closes
    #: after the same time.
    head_bytes: int = 64 << 10
    head_lines: int = 100
    head_seconds: float = 10.0
    #: Host names, comma separated, by which clients may address a gateway without keys. Names of this machine,
    #: addresses and names inside a cluster are always allowed. Protects against DNS rebinding.
    allowed_hosts: str = ""
    #: Origins whose web pages may use this gateway, such as ``https://app.example.com``, comma separated; ``*`` for
    #: all, if API keys are required.
    cors_origins: str = ""
    #: Invocations in flight at this gateway before it answers 429.
    max_inflight: int = 512
    #: Predicted seconds that a request may wait in executors, at most half of ``deadline``. Longer queues are an
    #: overload: until the queue has been empty for a while, a request that would wait longer than its service time gets
    #: a 429. A request that would miss its deadline always does.
    queue_seconds: float = 30.0
    #: ``full`` stores inputs and media, so that replay is exact. ``stages`` also stores outputs of nodes, so that a
    #: replay may start at any node; it costs memory and time. ``digest`` stores sizes and digests only.
    record: Literal["full", "stages", "digest"] = "full"
    #: Other values of ``record`` by tenant: ``legal=digest,trial=full``. ``stages`` is not possible for single tenants.
    record_tenants: str = ""
    #: Inputs in dead letters: ``full``, ``stages`` or ``digest``, as ``record``.
    deadletters: Literal["full", "stages", "digest"] = "digest"
    #: Extra work, in mean requests of its option, up to which an executor on the node with a request's tensors is
    #: preferred to the least loaded one. 0: only between equals.
    near: float = 0.5
    #: Data retained from running requests, so that a lost stage restarts alone. ``auto``: inputs of stages on other
    #: executors, checkpoints of images and videos, codes of talkers. ``all``: also inputs from the same executor.
    #: ``off``: nothing, so that requests restart as a whole. With ``record=stages`` nothing is retained.
    retain: Literal["auto", "all", "off"] = "auto"
    #: Bytes of retained data at this gateway.
    retain_bytes: int = 256 << 20
    #: Seconds for which an input is rejected after it ended two executors; 0: never.
    quarantine: float = 600.0
    #: Directory of recorded media, by content hash; empty: none are stored.
    media_dir: str = ""
    #: Bytes of recorded media; the oldest are evicted first.
    media_bytes: int = 1 << 30
    #: Seconds for which files returned as URLs are stored below ``media_dir``, bytes of one file, and of all. Above
    #: that, the oldest files of the largest tenant are evicted.
    file_seconds: float = 3600.0
    file_largest: int = 64 << 20
    file_bytes: int = 1 << 30
    #: Storage of clients' files: ``s3://BUCKET/PREFIX``, or empty for ``media_dir``; its endpoint, if it is not
    #: Amazon's.
    storage: str = ""
    storage_endpoint: str = ""
    #: Whether ``storage`` also stores results: videos, and files returned as URLs. The same at all gateways. Off: these
    #: are below ``media_dir``.
    storage_results: bool = False
    #: Bytes of all files of a tenant, and seconds until they expire by default.
    upload_bytes: int = 1 << 30
    upload_seconds: float = 2592000.0
    #: Concurrent lines of a batch; 0: this gateway runs no batches.
    batch_parallel: int = 4
    #: Videos in progress at this gateway, open at all gateways, and stored with the finished ones until they expire.
    videos: int = 2
    videos_open: int = 64
    videos_kept: int = 512
    #: Seconds until a video or background response times out, waiting included, and expires; responses stored per
    #: tenant.
    video_deadline: float = 3600.0
    video_kept: float = 3600.0
    response_deadline: float = 3600.0
    response_kept: float = 30 * 24 * 3600.0
    responses: int = 4096
    #: Open realtime sessions, seconds of a session, and seconds without an event of its client.
    realtime_sessions: int = 256
    realtime_seconds: float = 3600.0
    realtime_idle: float = 900.0
    #: Realtime sessions that clients can resume at another gateway, because their events are stored: ``requested`` (by
    #: the client), ``always``, ``off``.
    realtime_resume: Literal["off", "requested", "always"] = "requested"
    #: Speech detector of realtime sessions: ``energy``, ``silero`` (a separate package), or ``module:function`` of a
    #: plugin. ``auto``: the model's, else ``silero`` if installed, else ``energy``.
    realtime_detector: str = "auto"
    #: Whether realtime sessions start an answer in the silence that may end a turn, if executors have less than half a
    #: batch to do. It is dropped if the user continues.
    realtime_early: bool = True
    #: Seconds without a sign of a gateway until another one restarts its videos.
    video_lease: float = 15.0
    #: Maximum seconds and frames of a video, pixels of a frame and of all frames. Frames wait in memory for the
    #: encoder, with 3 bytes per pixel.
    video_seconds: float = 60.0
    video_frames: int = 1024
    video_frame: int = 4 << 20
    video_pixels: int = 1 << 28
    #: Bytes of stored videos above which new ones are rejected.
    video_bytes: int = 4 << 30
    #: Background responses in progress at all gateways.
    responses_open: int = 256
    #: Bytes of conversations and earlier responses that a request may continue; they are read into memory.
    history_bytes: int = 32 << 20
    #: A tenant's share of ``videos_open``, ``videos_kept``, ``video_bytes``, ``realtime_sessions``, ``responses_open``,
    #: batches, and events of responses and sessions (``OMNIBUS_BUS_RESPONSE_BYTES``); 1: all. If all is in use, a
    #: tenant with less than an equal part still gets some.
    tenant_share: float = 0.25
    #: Bytes of a tenant in the store: responses, conversations, jobs and their images, spoken answers, streams that can
    #: be continued, client secrets. Without keys, the total is that of ``1 / tenant_share`` tenants.
    tenant_bytes: int = 128 << 20
    #: One in this many chats has its graph recorded and replayed in full, and compared with the cached graph of its
    #: kind. 1: every chat.
    verify_every: int = 100
    #: Streamed chats that clients can continue at another gateway: ``requested`` (by the client), ``always``, ``off``.
    #: The store keeps their requests until the deadline, up to this many bytes each.
    continue_streams: Literal["off", "requested", "always"] = "requested"
    continue_bytes: int = 256 << 10
    #: Prefix of the URLs of files, such as ``https://api.example.com``; empty: the address in the client's request.
    public_url: str = ""
    #: Only gateways with the same salt share cached embeddings of media. Response times would otherwise reveal files of
    #: other tenants.
    salt: str = ""
    #: Whether media may be fetched over plain HTTP, and from private addresses. Off in production.
    allow_http: bool = False
    allow_private: bool = False
    #: Bearer token of control routes. Empty: apps cannot be changed, and other control routes are open to this machine
    #: only.
    admin_token: str = ""
    #: Whether clients must send an API key: one of ``keys_file``, a JSON file that is reloaded when it changes, or of
    #: the store (``omnibus keys``). A file alone turns keys on. Off: one tenant, no limits.
    keys: bool = False
    keys_file: str = ""
    #: Concurrent requests of an executor that tenants share; 0: its batch size.
    admit: int = 0
    #: Waiting requests of a tenant for a model, and their maximum seconds of waiting; latency goals of the plan are
    #: limits as well.
    admit_queue: int = 64
    admit_wait: float = 30.0
    #: Whether caches of media and prompts are separate by tenant. Off: shared prompts are faster, but response times
    #: reveal inputs of other tenants.
    isolate: bool = True
    #: Directory of apps that may be registered, the same at every gateway; empty: none.
    apps_dir: str = ""
    #: Directory of LoRA adapters that may be loaded at run time, the same at every gateway and in
    #: ``OMNIBUS_EXECUTOR_ADAPTERS_DIR``; empty: none.
    adapters_dir: str = ""
    #: Whether the request that registers an app may contain its text.
    app_uploads: bool = False
    #: Whether clients receive an app's exception with the line of its code. ``omnibus up`` turns it on.
    app_errors: bool = False
    #: Largest request to register an app in bytes, an uploaded text included.
    app_body: int = 1 << 20
    #: Seconds until an app must be loaded, and its own unit tasks have executors.
    app_ready: float = 60.0
    #: Seconds for requests of an app's old version to finish.
    app_drain: float = 30.0
    #: Maximum apps with a worker process at each gateway, at least 1. A call of another app starts its worker, and
    #: stops that of the least recently called app.
    app_workers: int = 32
    #: Seconds for which the store keeps the console's history of rates, latencies and failed requests; 0: none.
    history_seconds: float = 7 * 24 * 3600.0
    #: File with the output of all processes, written by ``omnibus up``. The console shows its last lines. Empty: none.
    log_file: str = ""


class PlannerSettings(Settings, frozen=True):
    """Declared models, and when a plan is changed."""

    area: ClassVar[str] = "PLANNER"

    #: JSON file that declares the models and their deployments; empty: only models of apps.
    models: str = ""
    #: Seconds until new executors must be ready; otherwise the plan change is postponed.
    ready: float = 300.0
    #: Seconds until a postponed change is retried; doubled each time, up to an hour.
    retry: float = 10.0
    #: Empty: executors follow the plan by themselves, as under ``omnibus up``. ``kubernetes``: the planner starts and
    #: stops them (see Kubernetes). ``agents``: it assigns them to the machines of ``omnibus node``.
    reconcile: str = ""
    #: Seconds of measured load to plan by.
    window: float = 15.0
    #: Part of its capacity by which the current plan must fall short of the best one before executors change.
    margin: float = 0.1
    #: Seconds for which it must fall short; 0: two windows.
    hold: float = 0.0
    #: Minimum seconds between two plans that follow the load.
    cooldown: float = 60.0
    #: Minimum requests in a window to plan by.
    least: int = 30
    #: Approximate seconds of CPU time to simulate and solve a plan until promise and simulation agree; 0: no
    #: simulation. Simulated requests are counted instead of time, so that results are the same on each machine.
    simulate: float = 5.0


class KubernetesSettings(Settings, frozen=True):
    """Access of the planner to the cluster that it runs executors in."""

    area: ClassVar[str] = "KUBERNETES"

    #: URL of the API server.
    url: str = "https://kubernetes.default.svc"
    #: Directory with the ``token``, ``ca.crt`` and ``namespace`` of the service account.
    account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    #: Namespace of executors; empty: the account's.
    namespace: str = ""
    #: JSON file with the pods of executors by service; see ``omnibus_planner.reconcile.manifests``.
    template: str = ""
    #: Prefix of the names of executors, and the label that separates several Omnibus in a namespace.
    release: str = "omnibus"
    #: ConfigMap that owns the workloads, so that Kubernetes deletes them with it. Empty: they stay until you delete
    #: them.
    owner: str = ""
    #: Lease of the planner that starts and stops executors; empty: the release's name.
    lease: str = ""
    #: Seconds until a request to the API server times out.
    timeout: float = 10.0
    #: Seconds between two checks of the workloads without changes.
    resync: float = 30.0


class ServiceSettings(Settings, frozen=True):
    """Settings that all services have."""

    area: ClassVar[str] = "SERVICE"

    #: Port of the metrics and health endpoint; 0: none, or a free one if ``metrics_dir`` is set.
    metrics_port: int = 0
    #: Directory for a file with the endpoint's address, in Prometheus' format (``file_sd_configs``), and its host.
    metrics_dir: str = ""
    metrics_host: str = "127.0.0.1"
    #: Lowest logged severity: ``DEBUG``, ``INFO``, ``WARNING`` or ``ERROR``.
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    #: Seconds for a stopping service to finish accepted work. Unset: 30 for a gateway, 10 for other services.
    drain: float | None = None

    def drain_seconds(self, service: str) -> float:
        """Return the seconds that ``service`` may take to drain.

        A supervisor must wait longer before it kills the service.
        """
        if self.drain is not None:
            return self.drain
        return GATEWAY_DRAIN_SECONDS if service == "gateway" else DRAIN_SECONDS


class UpSettings(Settings, frozen=True):
    """Processes of ``omnibus up``."""

    area: ClassVar[str] = "UP"

    #: Fork services and executors from processes that have imported their libraries: a fast start, less memory.
    fork_server: bool = True
    #: Seconds without an answer until a process that has served is killed and restarted; 0: never.
    silent: float = 8.0
    #: The same if no thread of the process runs or is runnable, so that it is frozen and does not merely lack CPU time;
    #: at least 2. 0: as ``silent``.
    frozen: float = 3.0
    #: Cores of the NATS server of ``omnibus up``; 0: a quarter of this machine's, at least one. ``GOMAXPROCS`` in the
    #: environment takes precedence.
    nats_cores: int = 0
    #: PEM files of the certificate and key of the NATS server of ``omnibus up --listen``; empty: no TLS.
    tls_cert: str = ""
    tls_key: str = ""
    #: File with the secret of all nodes that join this machine, created on first use; empty: ``nodes.secret`` beside
    #: the directory of runs.
    node_secret_file: str = ""
    #: Bytes of memory of the Valkey server of ``omnibus up``. Above that it rejects writes, and evicts nothing.
    store_bytes: int = 1 << 30
