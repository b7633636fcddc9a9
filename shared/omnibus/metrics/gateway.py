"""Metrics of gateways: requests and latencies as clients see them."""

from functools import cache
from typing import Any

from prometheus_client import Counter, Histogram

from omnibus.metrics.buckets import LATENCY_BUCKETS_SECONDS
from omnibus.metrics.collectors import REGISTRY, CallbackMetric
from omnibus.metrics.tallies import Distribution, Tally, TallyCounter, TallyHistogram

#: From one token to the next.
_TOKEN_GAPS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
#: Seconds of work for a second of sound: 1 is as fast as it is played.
_REALTIME_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 5.0, 10.0)


class _Gateway:
    """Metrics of a gateway: requests and latencies as clients see them."""

    #: Requests by model and outcome (``ok`` or an error code). A rise of 5xx codes: see the stage in the logs.
    requests = TallyCounter("omnibus_requests_total", "Requests by model and outcome.", ["model", "code"])
    #: Requests to apps by outcome. A rise of one app's 5xx codes: see its worker's lines in the gateway's log.
    apps = Counter("omnibus_app_requests_total", "Requests by app and outcome.", ["app", "code"], registry=REGISTRY)
    #: Apps that have a worker process here, at most OMNIBUS_GATEWAY_APP_WORKERS.
    app_workers = CallbackMetric("omnibus_app_workers", "Apps with a worker process.")
    #: Workers that were started because their app was called. Many: raise OMNIBUS_GATEWAY_APP_WORKERS.
    app_cold_starts = Counter("omnibus_app_cold_starts_total", "Workers started by a call.", registry=REGISTRY)
    #: Requests per path. Compare with the planned rates; a drift means missing executors.
    paths = TallyCounter("omnibus_path_requests_total", "Requests by path.", ["model", "type", "path"])
    #: What part of its type's requests the plan gives each path, of those that were used since it came.
    planned = CallbackMetric("omnibus_path_planned_share", "Planned share of a path.", ["model", "type", "path"])
    #: Invocations that came, refused ones too, told once a second. Far above what is planned: plan again, or add GPUs.
    arrivals = Counter("omnibus_arrivals_total", "Requests received, by type.", ["model", "type"], registry=REGISTRY)
    #: Invocations by outcome: done, failed or refused. Refused ones found no room: more executors are needed.
    ended = Counter("omnibus_ended_total", "What ended, by type.", ["model", "type", "outcome"], registry=REGISTRY)
    #: Requests that failed in a stage, by the code of the error. One stage alone: see the logs of its executors.
    stage_failures = Counter(
        "omnibus_stage_failures_total", "Failures by stage.", ["model", "stage", "code"], registry=REGISTRY
    )
    #: Requests to models with latency goals, by result: ``met`` all of them, or ``missed`` one, were refused or failed.
    #: Less than 99 % met: add GPUs, or relax the goals.
    goals = Counter("omnibus_goal_requests_total", "Requests by goals.", ["model", "result"], registry=REGISTRY)
    #: Tokens and seconds of speech of what was done. More per request than the plan was made for: plan again.
    quantities = Counter(
        "omnibus_quantities_total", "Tokens and seconds.", ["model", "type", "quantity"], registry=REGISTRY
    )
    #: From request to first output. High with idle executors: look at the waterfall of one invocation.
    first = TallyHistogram(
        "omnibus_first_output_seconds",
        "Time to first output.",
        ["model", "output"],
        buckets=LATENCY_BUCKETS_SECONDS,
    )
    #: From request to end.
    total = TallyHistogram("omnibus_request_seconds", "Whole request.", ["model"], buckets=LATENCY_BUCKETS_SECONDS)
    #: Mean time between two tokens of an answer, as its client got them. High with idle executors: see its waterfall.
    tbt = TallyHistogram("omnibus_tbt_seconds", "Mean time between tokens.", ["model"], buckets=_TOKEN_GAPS_SECONDS)
    #: The longest time between two pieces of text of an answer. Far above the mean: prompts hold up decoding; set
    #: OMNIBUS_EXECUTOR_TBT, or encode and prefill elsewhere.
    pause = TallyHistogram("omnibus_tbt_longest_seconds", "Longest pause.", ["model"], buckets=_TOKEN_GAPS_SECONDS)
    #: Seconds from the request to the end of its sound, for each second of sound. Above 1 it cannot be played while it
    #: is made: more talkers or vocoders are needed.
    factor = Histogram(
        "omnibus_audio_realtime_factor",
        "Seconds per second of audio.",
        ["model"],
        registry=REGISTRY,
        buckets=_REALTIME_FACTORS,
    )
    #: Times that a client who plays sound as it comes had none left, and the seconds of silence that this made.
    underruns = Counter("omnibus_audio_underruns_total", "Pauses in audio.", ["model"], registry=REGISTRY)
    silence = Counter("omnibus_audio_underrun_seconds_total", "Silence.", ["model"], registry=REGISTRY)
    #: Seconds of sound that clients got.
    sound = Counter("omnibus_audio_seconds_total", "Seconds of audio.", ["model"], registry=REGISTRY)
    #: Requests in flight at this gateway. At its limit clients get 429.
    inflight = CallbackMetric("omnibus_gateway_inflight", "Requests in flight.")
    #: The limit, OMNIBUS_GATEWAY_MAX_INFLIGHT.
    limit = CallbackMetric("omnibus_gateway_inflight_limit", "Requests that may be in flight.")
    #: Requests that were refused, by why. No room: ``gateway`` is at its limit, ``executors`` were all busy, ``bodies``
    #: of requests under way fill OMNIBUS_GATEWAY_BODIES. Tenants:
    #: ``queue``, as many of it wait as may; ``turn``, its turn did not come in time; ``rate``, ``concurrent`` and
    #: ``gpu_seconds``, limits of its key. Where the model is not known yet it is "". What a key's limits refuse is not
    #: among what came; ``omnibus_tenant_refused_total`` says whose it was.
    rejected = Counter("omnibus_rejected_total", "Requests refused by reason.", ["model", "reason"], registry=REGISTRY)
    #: Executors that this gateway knows, by state: ``ok``, ``silent`` without heartbeats, ``stuck`` without progress.
    executors = CallbackMetric("omnibus_executors", "Executors known here.", ["model", "option", "state"])
    #: Work that this gateway has sent to executors of an option and not seen finish.
    outstanding = CallbackMetric("omnibus_outstanding_tokens", "Work on its way, in tokens.", ["model", "option"])
    #: Videos that clients have asked for and that are made here now.
    videos = CallbackMetric("omnibus_gateway_videos", "Videos being made here.")
    #: Realtime sessions that were opened, by model.
    realtime_sessions = Counter("omnibus_realtime_sessions_total", "Realtime sessions.", ["model"], registry=REGISTRY)
    #: Sessions that went on at another connection.
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
    #: Spoken answers whose speech a limit has ended (``max_tokens`` of ``audio``, ``OMNIBUS_EXECUTOR_SPEECH_SECONDS``):
    #: a talker that does not find its end, or a long text.
    speech_cut = Counter("omnibus_speech_cut_total", "Speech that a limit has ended.", ["model"], registry=REGISTRY)
    #: Responses of realtime sessions that ended early: by speech (``turn_detected``) or their client
    #: (``client_cancelled``).
    realtime_interruptions = Counter(
        "omnibus_realtime_interruptions_total", "Interrupted responses.", ["model", "reason"], registry=REGISTRY
    )
    #: Responses that were begun before their turn had ended: ``used``, ``dropped`` (the user went on speaking, or the
    #: client changed the conversation), ``refused`` (executors had others' work). ``encoded``: audio of a turn that was
    #: encoded while its user spoke, a window after the other.
    realtime_early = Counter(
        "omnibus_realtime_early_total",
        "Responses begun before their turn ended.",
        ["model", "outcome"],
        registry=REGISTRY,
    )
    #: Invocations that were sent to other executors. Rising: executors die or are full.
    moved = Counter("omnibus_moved_total", "Re-dispatches by reason.", ["reason"], registry=REGISTRY)
    #: Nodes of such invocations that began ``again``, and that went on or were done (``spared``). Few are spared: see
    #: OMNIBUS_GATEWAY_RETAIN and whether the arena has room.
    restarts = Counter("omnibus_restarted_nodes_total", "Nodes of moved requests.", ["outcome"], registry=REGISTRY)
    #: Finished requests that were chosen for a comparison with a candidate, by what came of it: ``same``, ``failed``,
    #: ``slower``, ``differed``; ``void`` if what serves failed as well, ``no room`` if users' requests needed it,
    #: ``skipped`` if it cannot be run again. See `omnibus canary status`.
    mirrored = Counter(
        "omnibus_mirrored_total", "Comparisons with candidates.", ["model", "outcome"], registry=REGISTRY
    )
    #: Bytes that are retained for requests in flight, at most OMNIBUS_GATEWAY_RETAIN_BYTES.
    retained = CallbackMetric("omnibus_gateway_retained_bytes", "Bytes retained for restarts.")
    #: Inputs that ``crashed`` or ``failed`` an engine. Any at all: `omnibus deadletters` lists and shows them.
    dead = CallbackMetric("omnibus_deadletters_total", "Dead letters by reason.", ["model", "reason"])
    #: Records and dead letters that JetStream did not take, though they were sent several times. Any at all: its disk.
    records_lost = CallbackMetric("omnibus_records_lost_total", "Records that were given up.")
    #: Epoch of the plan in use; gateways that differ for long do not hear the store.
    epoch = CallbackMetric("omnibus_plan_epoch", "Plan epoch in use.")
    #: When that plan was made, Unix seconds; its age is ``time()`` less this.
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
