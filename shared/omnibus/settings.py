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

    #: ``nats://host:port``, ``tls://host:port`` for TLS. Of a cluster several, with commas: a service connects to one,
    #: and to another when that is lost.
    url: str = "nats://127.0.0.1:4222"
    #: User of the NATS server and its password; empty: those of the URL, or none.
    user: str = ""
    password: str = ""
    #: PEM file of the authority that signed the server's certificate; empty: no TLS. A certificate of this service and
    #: its key, for a server that asks for one.
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    #: Seconds until an attempt to connect is given up.
    connect_timeout: float = 10.0
    #: Servers of a cluster that keep a copy of each stream: 3 of three servers lose nothing when one is lost.
    replicas: int = 1
    #: Bytes that one message may have, headers included; the NATS server's ``max_payload`` may not be smaller. Larger
    #: inputs travel by handle.
    max_payload: int = 64 * 1024
    #: Seconds and bytes that recorded invocations are kept.
    record_seconds: float = 24 * 3600.0
    record_bytes: int = 1 << 30
    #: The same of dead letters (inputs that crashed or failed an engine), and of events of responses and sessions.
    dead_seconds: float = 7 * 24 * 3600.0
    dead_bytes: int = 64 << 20
    response_seconds: float = 3600.0
    response_bytes: int = 256 << 20


class StoreSettings(Settings, frozen=True):
    """Connection to Redis or Valkey."""

    area: ClassVar[str] = "STORE"

    #: ``rediss://user:password@host:port/0`` for TLS. With Sentinel the addresses of the sentinels, with commas, and
    #: what they call the servers: ``redis+sentinel://user:password@host:26379,host2:26379/mymaster/0``, or
    #: ``rediss+sentinel://`` for TLS.
    url: str = "redis://127.0.0.1:6379/0"
    #: PEM file of the authority that signed the server's certificate; empty: those that this machine trusts. A
    #: certificate of this service and its key, for a server that asks for one.
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    #: Signs plans and app records, which decide what code runs; the same for gateways and planners. Where it is set,
    #: those that are not signed with it are refused; empty: whatever is in the store is believed.
    secret: str = ""
    #: Begins the names of all keys, so that several Omnibus may share a server.
    prefix: str = "omnibus"
    #: Seconds that one command may take.
    timeout: float = 2.0
    #: Plans that are kept: the current one and those before it.
    history: int = 100


class SidecarSettings(Settings, frozen=True):
    """The node's arena: read by the sidecar, and by all services that use it."""

    area: ClassVar[str] = "SIDECAR"

    #: Unix socket at which the sidecar listens, and the name of this node (empty: its host name).
    socket: str = "/tmp/omnibus/sidecar.sock"
    node: str = ""
    #: MiB of shared memory for tensors.
    arena_mib: int = 256
    #: Overwrite freed blocks with zeros: slower, for nodes that several tenants share.
    clear: bool = False
    #: Address and port (0: a free one) for sidecars of other nodes; empty: there are none, and nothing listens.
    host: str = ""
    port: int = 7400
    #: Address by which others reach this node (empty: ``host``), and the file of the secret that all nodes share.
    advertise: str = ""
    secret_file: str = ""
    #: PEM files for TLS between nodes: the authority, and a certificate that names the node, with its key.
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    #: What carries large tensors between nodes: `tcp`, or `ucx` for networks with RDMA (the extra `ucx`; not with TLS).
    transport: Literal["tcp", "ucx"] = "tcp"
    #: Data connections to one other node, and the share of the arena that tensors of other nodes may take.
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

    #: Address and port at which HTTP requests are taken.
    host: str = "127.0.0.1"
    port: int = 8000
    #: PEM files of this server's certificate and its key; empty: plain HTTP.
    tls_cert: str = ""
    tls_key: str = ""
    #: Seconds a request may take when the client names no deadline.
    deadline: float = 120.0
    #: Largest HTTP body in bytes.
    max_body: int = 64 << 20
    #: Bytes of the request bodies that this gateway holds, from their first byte until they are answered, before it
    #: answers 429. Bodies of 64 KiB and less are free; where there are tenants, one of them has at most half.
    bodies: int = 1 << 30
    #: Seconds that a body may pause, and bytes that it has to bring per second after as many. All of it has to be there
    #: before the deadline, which counts from its first byte.
    body_pause: float = 30.0
    body_rate: int = 1024
    #: Bytes and headers of a request's head, and seconds until it is complete. A connection on which no request begins
    #: in that time is closed.
    head_bytes: int = 64 << 10
    head_lines: int = 100
    head_seconds: float = 10.0
    #: Names that clients may call this gateway by where no keys are asked for, besides those of this machine, addresses
    #: and names inside a cluster; with commas between them. Else a web page could use the gateway by a name of its own.
    allowed_hosts: str = ""
    #: Origins whose web pages may use this gateway, as ``https://app.example.com``, with commas between them; ``*`` for
    #: all, where API keys are asked for.
    cors_origins: str = ""
    #: Invocations in flight at this gateway before it answers 429.
    max_inflight: int = 512
    #: Seconds that a request may wait in executors for those before it, as far as that can be predicted, at most half
    #: of ``deadline``. A longer queue is an overload: until it was empty for a while, what would wait longer than
    #: engines compute for it gets 429, as does at any time what would not end by its deadline.
    queue_seconds: float = 30.0
    #: ``full``: inputs and media are kept, so that replay is exact. ``stages``: also what nodes pass to each other, so
    #: that a replay may begin at any of them; it costs memory and time. ``digest``: sizes and digests only.
    record: Literal["full", "stages", "digest"] = "full"
    #: Tenants whose requests are recorded otherwise than ``record`` says: ``legal=digest,trial=full``. What stages
    #: pass to each other is not recorded for a tenant alone.
    record_tenants: str = ""
    #: What dead letters keep of inputs: ``full``, ``stages`` or ``digest``, as ``record``.
    deadletters: Literal["full", "stages", "digest"] = "digest"
    #: Work by which an executor on the node that holds a request's tensors may exceed the least loaded one and still be
    #: chosen, in mean requests of its option. 0: nearness decides among equals only.
    near: float = 0.5
    #: What is retained of running requests, so that a lost stage begins again without those before it. ``auto``: what
    #: stages on other executors read, checkpoints of images and videos, codes of talkers. ``all``: also what is read on
    #: the same executor. ``off``: nothing, a request runs again as a whole. Where stages are recorded nothing is
    #: retained.
    retain: Literal["auto", "all", "off"] = "auto"
    #: Bytes that may be retained for the requests of this gateway.
    retain_bytes: int = 256 << 20
    #: Seconds that an input is refused after it ended two executors; 0: it never is.
    quarantine: float = 600.0
    #: Directory of recorded media, by content hash; empty: none is kept.
    media_dir: str = ""
    #: Bytes of recorded media that are kept; the oldest are removed first.
    media_bytes: int = 1 << 30
    #: Seconds that files are kept which clients were given a URL of, below ``media_dir``; bytes of one, and of
    #: all of them. When there are more, the oldest of the tenant that has most leave.
    file_seconds: float = 3600.0
    file_largest: int = 64 << 20
    file_bytes: int = 1 << 30
    #: Place of files of clients: ``s3://BUCKET/PREFIX``, empty for ``media_dir``; the endpoint, if it is not Amazon's.
    storage: str = ""
    storage_endpoint: str = ""
    #: Whether ``storage`` keeps what is made for clients as well: videos, and files that they were given a URL of. All
    #: gateways say the same. Off: these are below ``media_dir``.
    storage_results: bool = False
    #: Bytes of all files of one tenant, and seconds that they are kept unless it is said otherwise.
    upload_bytes: int = 1 << 30
    upload_seconds: float = 2592000.0
    #: Lines of a batch that are at work at the same time; 0: this gateway works on no batches.
    batch_parallel: int = 4
    #: Videos that this gateway sees to at the same time, that all gateways together have to make, and that they know
    #: with those that are made, until they expire.
    videos: int = 2
    videos_open: int = 64
    videos_kept: int = 512
    #: Seconds that a video or background response may take, waiting included, and is kept; responses kept of a tenant.
    video_deadline: float = 3600.0
    video_kept: float = 3600.0
    response_deadline: float = 3600.0
    response_kept: float = 30 * 24 * 3600.0
    responses: int = 4096
    #: Realtime sessions that are open at the same time, seconds that one lasts, and that its client may send nothing.
    realtime_sessions: int = 256
    realtime_seconds: float = 3600.0
    realtime_idle: float = 900.0
    #: Realtime sessions whose events are kept, so that their clients resume them at another gateway: ``requested`` (by
    #: their client), ``always``, ``off``.
    realtime_resume: Literal["off", "requested", "always"] = "requested"
    #: What tells speech from other sounds in realtime sessions: ``energy``, ``silero`` (its package is installed
    #: apart), or ``module:function`` of a plugin; ``auto``: what the session's model declares, else ``silero`` where
    #: its package is installed, else ``energy``.
    realtime_detector: str = "auto"
    #: Whether realtime sessions begin an answer in the silence that may end a turn, where executors have less than half
    #: a batch to do. It is dropped if its user goes on speaking.
    realtime_early: bool = True
    #: Seconds after which another gateway takes a video up when this one is silent.
    video_lease: float = 15.0
    #: The longest video, its frames, and the pixels of one of them and of all. Frames wait in memory, 3 bytes a pixel,
    #: while they are made faster than they are encoded.
    video_seconds: float = 60.0
    video_frames: int = 1024
    video_frame: int = 4 << 20
    video_pixels: int = 1 << 28
    #: Bytes of the videos that are kept below the media directory before no more are taken on.
    video_bytes: int = 4 << 30
    #: Responses that are made in the background at a time, at all gateways.
    responses_open: int = 256
    #: Bytes of conversations and earlier responses that one request may continue: they are read into memory.
    history_bytes: int = 32 << 20
    #: The share of ``videos_open``, ``videos_kept``, ``video_bytes``, ``realtime_sessions``, ``responses_open``, of
    #: batches and of the events of responses and sessions (``OMNIBUS_BUS_RESPONSE_BYTES``) that one tenant may have;
    #: 1 for all of it. Where all is taken, a tenant with less than an equal part still gets some.
    tenant_share: float = 0.25
    #: Bytes of the store that one tenant may fill: responses, conversations, jobs and their images, spoken answers,
    #: requests of streams that can be continued, client secrets. Without keys as many as ``1 / tenant_share`` tenants.
    tenant_bytes: int = 128 << 20
    #: One in so many chats has its graph recorded and replayed in full, and compared with the one that is kept for all
    #: chats of its kind. 1: each one.
    verify_every: int = 100
    #: Streamed chats that can be continued at another gateway: ``requested`` (by their client), ``always``, ``off``.
    #: Their requests are kept in the store until their deadline; no longer ones than so many bytes.
    continue_streams: Literal["off", "requested", "always"] = "requested"
    continue_bytes: int = 256 << 10
    #: Begins the URLs of files, as ``https://api.example.com``; empty: what the client called this gateway.
    public_url: str = ""
    #: Kept embeddings of media are shared by gateways with the same salt alone. Else the time that a request
    #: takes would tell one tenant that another one has sent the same file.
    salt: str = ""
    #: Whether media may be fetched over plain http, and from private addresses. Off in production.
    allow_http: bool = False
    allow_private: bool = False
    #: Bearer token of control routes, see ``omnibus_gateway.auth.admin``; empty: nobody changes apps, and other
    #: control routes are for clients of this machine alone.
    admin_token: str = ""
    #: Whether clients must send an API key: those of ``keys_file``, a JSON file that is read again when it changes,
    #: and those of the store (``omnibus keys``). A file alone asks for keys as well. Off: one tenant, no limits.
    keys: bool = False
    keys_file: str = ""
    #: Requests that an executor is given at a time while tenants share it; 0: as many as it says that it batches.
    admit: int = 0
    #: Requests of one tenant that wait for their turn, for one model, and the seconds that one may.
    admit_queue: int = 64
    admit_wait: float = 30.0
    #: Whether tenants share nothing that is kept of their media and prompts. Off: what one sent makes another's request
    #: faster, a system prompt of all of them for example, and the time that it takes tells who sent it before.
    isolate: bool = True
    #: Directory that apps may be registered from, on every gateway the same; empty: none.
    apps_dir: str = ""
    #: Directory that LoRA adapters may be loaded from while the system serves, on every gateway the same, and for
    #: executors OMNIBUS_EXECUTOR_ADAPTERS_DIR; empty: none.
    adapters_dir: str = ""
    #: Whether the text of an app may come with the request that registers it.
    app_uploads: bool = False
    #: Whether clients are told what an app raised, with the line of its code. `omnibus up` does so.
    app_errors: bool = False
    #: Largest request to register an app in bytes, an uploaded text included.
    app_body: int = 1 << 20
    #: Seconds that an app may take to load, and its own unit tasks to get executors.
    app_ready: float = 60.0
    #: Seconds that the requests of an app's old version may take to finish.
    app_drain: float = 30.0
    #: Apps that have a worker process at each gateway, at most (1 at least). A call of another one starts its worker
    #: and stops that of the app that was called least recently.
    app_workers: int = 32
    #: Seconds that rates, latencies and errors of the console's history are kept in the store; 0: none are.
    history_seconds: float = 7 * 24 * 3600.0
    #: File with the output of all processes, as `omnibus up` writes it: the console shows its last lines. Empty: none.
    log_file: str = ""


class PlannerSettings(Settings, frozen=True):
    """Declared models, and when a plan is changed."""

    area: ClassVar[str] = "PLANNER"

    #: JSON file that declares the models and their deployments; empty: apps bring all there is.
    models: str = ""
    #: Seconds that new executors may take to be ready before a change of the plan is put off.
    ready: float = 300.0
    #: Seconds until a change that was put off is tried again; each further time twice as many, up to an hour.
    retry: float = 10.0
    #: What starts and stops executors. Empty: they follow the plan by themselves, as under `omnibus up`.
    #: ``kubernetes``: the planner, see ``KubernetesSettings``.
    reconcile: str = ""
    #: Seconds of measured load that planned models are planned again by.
    window: float = 15.0
    #: Part of its capacity that the current plan must fall short of the best one by, for executors to change.
    margin: float = 0.1
    #: Seconds for which that must have been so; 0: two windows.
    hold: float = 0.0
    #: Seconds between two plans that follow the load, at least.
    cooldown: float = 60.0
    #: Requests in a window below which the load says nothing.
    least: int = 30
    #: Seconds of a core, about, in which a plan is simulated and solved once more until promise and simulation agree,
    #: before it is promised; 0: plans are promised as they were solved. Simulated requests are counted instead of time,
    #: so that the same question has the same answer on each machine.
    simulate: float = 5.0


class KubernetesSettings(Settings, frozen=True):
    """Access of the planner to the cluster that it runs executors in."""

    area: ClassVar[str] = "KUBERNETES"

    #: URL of the API server.
    url: str = "https://kubernetes.default.svc"
    #: Directory with the ``token``, ``ca.crt`` and ``namespace`` of the service account.
    account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    #: Where executors run; empty: the account's namespace.
    namespace: str = ""
    #: JSON file with what runs one executor, by service; see ``omnibus_planner.reconcile.manifests``.
    template: str = ""
    #: Tells the executors of one Omnibus from those of others in the namespace; begins their names.
    release: str = "omnibus"
    #: ConfigMap that workloads belong to: when it goes, they go. Empty: they stay until somebody deletes them.
    owner: str = ""
    #: Lease that the one planner holds which starts and stops executors; empty: the release's name.
    lease: str = ""
    #: Seconds that a request to the API server may take.
    timeout: float = 10.0
    #: Seconds between two looks at what runs when nothing changes.
    resync: float = 30.0


class ServiceSettings(Settings, frozen=True):
    """Settings that all services have."""

    area: ClassVar[str] = "SERVICE"

    #: Port of the metrics and health endpoint; 0: none, or a free one where ``metrics_dir`` is set.
    metrics_port: int = 0
    #: Directory for a file with its address, as Prometheus reads it (``file_sd_configs``); the host of that address.
    metrics_dir: str = ""
    metrics_host: str = "127.0.0.1"
    #: Least severity that is logged: ``DEBUG``, ``INFO``, ``WARNING`` or ``ERROR``.
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    #: Seconds a stopping service may take to finish what it has accepted. Unset: 30 for a gateway, whose answers take
    #: longest, and 10 for every other service.
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
    #: Seconds without an answer after which a process that has served is killed and started again; 0: never.
    silent: float = 8.0
    #: The same where none of its threads runs or wants to meanwhile, so that it is frozen and not merely starved; 0: as
    #: ``silent``. Two seconds at least.
    frozen: float = 3.0
    #: Cores that the NATS server of ``omnibus up`` computes on at the same time; 0: a quarter of this machine's, one at
    #: least. ``GOMAXPROCS`` in the environment counts for more.
    nats_cores: int = 0
    #: Bytes of memory that the Valkey server of ``omnibus up`` may use: then it rejects writes, and evicts nothing.
    store_bytes: int = 1 << 30
