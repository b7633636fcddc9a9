"""Metrics of gateways: requests and latencies as clients see them."""

from functools import cache
from typing import Any

from prometheus_client import Counter, Histogram

from omnibus.metrics.collectors import (
    LATENCY_BUCKETS_SECONDS,
    REGISTRY,
    CallbackMetric,
    Distribution,
    Tally,
    TallyCounter,
    TallyHistogram,
)

#: From one token to the next.
_TOKEN_GAPS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
#: Seconds of work for a second of audio. 1 is the speed of playback.
_REALTIME_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 5.0, 10.0)


class _Gateway:
    """Metrics of a gateway: requests and latencies as clients see them."""

    #: Requests by model and outcome (``ok`` or an error code). If 5xx codes rise, find the stage in the logs.
    requests = TallyCounter("omnibus_requests_total", "Requests by model and outcome.", ["model", "code"])
    #: Requests to apps by outcome. If one app's 5xx codes rise, see its worker's lines in the gateway's log.
    apps = Counter("omnibus_app_requests_total", "Requests by app and outcome.", ["app", "code"], registry=REGISTRY)
    #: Apps that have a worker process here, at most OMNIBUS_GATEWAY_APP_WORKERS.
    app_workers = CallbackMetric("omnibus_app_workers", "Apps with a worker process.")
    #: Workers started by a call of their app. If there are many, raise OMNIBUS_GATEWAY_APP_WORKERS.
    app_cold_starts = Counter("omnibus_app_cold_starts_total", "Workers started by a call.", registry=REGISTRY)
    #: Requests per path. Compare with the planned rates; a drift means missing executors.
    paths = TallyCounter("omnibus_path_requests_total", "Requests by path.", ["model", "type", "path"])
    #: Planned share of each path in the requests of its type, for paths used since the plan was applied.
    planned = CallbackMetric("omnibus_path_planned_share", "Planned share of a path.", ["model", "type", "path"])
    #: Arrived invocations, including refused ones, updated once a second. If far above the plan, plan again or add
    #: GPUs.
    arrivals = Counter("omnibus_arrivals_total", "Requests received, by type.", ["model", "type"], registry=REGISTRY)
    #: Invocations by outcome: done, failed or refused. Refused ones found no capacity: add executors.
    ended = Counter("omnibus_ended_total", "Ended requests, by type.", ["model", "type", "outcome"], registry=REGISTRY)
    #: Requests that failed in a stage, by the code of the error. If only one stage fails, see its executors' logs.
    stage_failures = Counter(
        "omnibus_stage_failures_total", "Failures by stage.", ["model", "stage", "code"], registry=REGISTRY
    )
    #: Requests to models with latency goals, by result: ``met`` all of them, or ``missed`` one, were refused or failed.
    #: Less than 99 % met: add GPUs, or relax the goals.
    goals = Counter("omnibus_goal_requests_total", "Requests by goals.", ["model", "result"], registry=REGISTRY)
    #: Tokens and seconds of speech of finished requests. If they exceed the plan's figures per request, plan again.
    quantities = Counter(
        "omnibus_quantities_total", "Tokens and seconds.", ["model", "type", "quantity"], registry=REGISTRY
    )
    #: From request to first output. If high with idle executors, see the waterfall of one invocation.
    first = TallyHistogram(
        "omnibus_first_output_seconds",
        "Time to first output.",
        ["model", "output"],
        buckets=LATENCY_BUCKETS_SECONDS,
    )
    #: From request to end.
    total = TallyHistogram("omnibus_request_seconds", "Whole request.", ["model"], buckets=LATENCY_BUCKETS_SECONDS)
    #: Mean time between two tokens of an answer, as sent to its client. If high with idle executors, see its waterfall.
    tbt = TallyHistogram("omnibus_tbt_seconds", "Mean time between tokens.", ["model"], buckets=_TOKEN_GAPS_SECONDS)
    #: The longest time between two pieces of text of an answer. If far above the mean, prompts delay decoding: set
    #: OMNIBUS_EXECUTOR_TBT, or encode and prefill in other executors.
    pause = TallyHistogram("omnibus_tbt_longest_seconds", "Longest pause.", ["model"], buckets=_TOKEN_GAPS_SECONDS)
    #: Seconds from the request to the end of its audio, per second of audio. Above 1, it cannot be played while it is
    #: generated: add talkers or vocoders.
    factor = Histogram(
        "omnibus_audio_realtime_factor",
        "Seconds per second of audio.",
        ["model"],
        registry=REGISTRY,
        buckets=_REALTIME_FACTORS,
    )
    #: Buffer underruns of clients that play audio as it arrives, and the resulting seconds of silence.
    underruns = Counter("omnibus_audio_underruns_total", "Pauses in audio.", ["model"], registry=REGISTRY)
    silence = Counter("omnibus_audio_underrun_seconds_total", "Silence.", ["model"], registry=REGISTRY)
    #: Seconds of audio sent to clients.
    sound = Counter("omnibus_audio_seconds_total", "Seconds of audio.", ["model"], registry=REGISTRY)
    #: Requests in flight at this gateway. At the limit, clients get a 429.
    inflight = CallbackMetric("omnibus_gateway_inflight", "Requests in flight.")
    #: The limit, OMNIBUS_GATEWAY_MAX_INFLIGHT.
    limit = CallbackMetric("omnibus_gateway_inflight_limit", "Requests that may be in flight.")
    #: Rejected requests by reason. No capacity: ``gateway`` is at its limit, ``executors`` were all busy, ``bodies`` of
    #: requests in flight fill OMNIBUS_GATEWAY_BODIES. Tenants: ``queue`` is full, ``turn`` did not start in time,
    #: ``rate``, ``concurrent`` and ``gpu_seconds`` are limits of the key. The model is "" if it is not known yet.
    #: Requests over a key's limits are not arrivals; ``omnibus_tenant_refused_total`` has their tenants.
    rejected = Counter("omnibus_rejected_total", "Requests refused by reason.", ["model", "reason"], registry=REGISTRY)
    #: Executors by their state in this gateway: ``ok``, ``silent`` without heartbeats, ``stuck`` without progress.
    executors = CallbackMetric("omnibus_executors", "Executors known here.", ["model", "option", "state"])
    #: Unfinished work that this gateway has sent to executors of an option.
    outstanding = CallbackMetric("omnibus_outstanding_tokens", "Work on its way, in tokens.", ["model", "option"])
    #: Requested videos that this gateway is generating now.
    videos = CallbackMetric("omnibus_gateway_videos", "Videos being made here.")
    #: Realtime sessions that were opened, by model.
    realtime_sessions = Counter("omnibus_realtime_sessions_total", "Realtime sessions.", ["model"], registry=REGISTRY)
    #: Sessions resumed on another connection.
    realtime_resumed = Counter(
        "omnibus_realtime_resumed_total", "Resumed realtime sessions.", ["model"], registry=REGISTRY
    )
    #: Realtime sessions that are open here, at most OMNIBUS_GATEWAY_REALTIME_SESSIONS.
    realtime_open = CallbackMetric("omnibus_realtime_open_sessions", "Open realtime sessions.")
    #: From the end of a user's turn, or the client's request for a response, to the response's first audio.
    realtime_first_audio = Histogram(
        "omnibus_realtime_first_audio_seconds",
        "Time to first audio of a turn.",
        ["model"],
        registry=REGISTRY,
        buckets=LATENCY_BUCKETS_SECONDS,
    )
    #: Spoken answers cut by a limit (``max_tokens`` of ``audio``, ``OMNIBUS_EXECUTOR_SPEECH_SECONDS``). The cause is a
    #: talker that does not stop, or a long text.
    speech_cut = Counter("omnibus_speech_cut_total", "Speech that a limit has ended.", ["model"], registry=REGISTRY)
    #: Responses of realtime sessions that ended early: by speech (``turn_detected``) or their client
    #: (``client_cancelled``).
    realtime_interruptions = Counter(
        "omnibus_realtime_interruptions_total", "Interrupted responses.", ["model", "reason"], registry=REGISTRY
    )
    #: Responses started before the end of their turn: ``used``, ``dropped`` (the user continued to speak, or the client
    #: changed the conversation), ``refused`` (executors were busy). ``encoded`` counts windows of a turn's audio that
    #: were encoded while its user spoke.
    realtime_early = Counter(
        "omnibus_realtime_early_total",
        "Responses begun before their turn ended.",
        ["model", "outcome"],
        registry=REGISTRY,
    )
    #: Invocations moved to other executors. If it rises, executors die or are full.
    moved = Counter("omnibus_moved_total", "Re-dispatches by reason.", ["reason"], registry=REGISTRY)
    #: Nodes of moved invocations that ran ``again``, and those that continued or were done (``spared``). If few are
    #: spared, check OMNIBUS_GATEWAY_RETAIN and the free space of the arena.
    restarts = Counter("omnibus_restarted_nodes_total", "Nodes of moved requests.", ["outcome"], registry=REGISTRY)
    #: Finished requests chosen for a comparison with a candidate, by outcome: ``same``, ``failed``, ``slower``,
    #: ``differed``, ``void`` if the serving version failed as well, ``no room`` if users' requests needed the capacity,
    #: ``skipped`` if it cannot run again. See `omnibus canary status`.
    mirrored = Counter(
        "omnibus_mirrored_total", "Comparisons with candidates.", ["model", "outcome"], registry=REGISTRY
    )
    #: Bytes retained for requests in flight, at most OMNIBUS_GATEWAY_RETAIN_BYTES.
    retained = CallbackMetric("omnibus_gateway_retained_bytes", "Bytes retained for restarts.")
    #: Inputs that ``crashed`` or ``failed`` an engine. `omnibus deadletters` lists and shows them.
    dead = CallbackMetric("omnibus_deadletters_total", "Dead letters by reason.", ["model", "reason"])
    #: Records and dead letters that JetStream did not accept after several attempts. If above 0, check its disk.
    records_lost = CallbackMetric("omnibus_records_lost_total", "Records that were given up.")
    #: Epoch of the plan in use. Gateways that differ for long do not receive events of the store.
    epoch = CallbackMetric("omnibus_plan_epoch", "Plan epoch in use.")
    #: Creation time of that plan in Unix seconds. Its age is ``time()`` minus this.
    created = CallbackMetric("omnibus_plan_created_seconds", "When the plan in use was made.")

    @cache  # noqa: B019 one instance, few labels
    def request_counter(self, model: str, code: str) -> Tally:
        return self.requests.labels(model, code)

    @cache  # noqa: B019 registered apps alone
    def app_counter(self, name: str, code: str) -> Any:
        return self.apps.labels(name, code)

    @cache  # noqa: B019
    def rejection_counter(self, model: str, reason: str) -> Any:
        return self.rejected.labels(model, reason)

    @cache  # noqa: B019
    def path_counter(self, model: str, kind: str, path: str) -> Tally:
        return self.paths.labels(model, kind, path)

    @cache  # noqa: B019
    def first_output(self, model: str, output: str) -> Distribution:
        return self.first.labels(model, output)

    @cache  # noqa: B019
    def duration_histogram(self, model: str) -> Distribution:
        return self.total.labels(model)


GATEWAY = _Gateway()
