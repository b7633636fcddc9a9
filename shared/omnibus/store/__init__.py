"""Store on Redis or Valkey: plans, apps, adapters, profiles, jobs, keys, answers and responses.

Keys, under ``<prefix>:``

``plan:epoch``, ``plan:<n>``, ``plan:history``   current number, plan documents, sorted set of epochs
``plan:staged``, ``plan:lead``                   the next plan, and the planner that leads the change to it
``plan:pin``                                     the only epoch that the planner may serve
``plan:cells``                                   hash of ``model/cell`` to the part of its planned share that it gets
``plan:problems``                                hash of the reporting component to the problem of the plan
``candidates``                                   hash of model to ``Candidate``, the last one that was tried
``candidate:counts:<id>``, ``:findings:<id>``    counts of a candidate's comparisons; the last bad ones
``apps``                                         hash of name to ``AppRecord``
``apps:life``                                    a random word that disappears if the store loses its data
``app:source:<sha256>``                          text of an uploaded app
``adapters``, ``adapters:life``                  hash of name to ``AdapterRecord``, loaded while serving; a random word
``profiles``                                     hash of model to ``ModelProfile``
``plan:scores``, ``profiles:learned``            hashes of epoch to ``PlanScore``, of model to ``LearnedSeconds``
``audio:<id>``                                   a spoken answer, until it expires
``stream:<token>``, ``stream:<token>:owner``     a streamed answer that can be continued, and its current sender
``response:<id>``                                hash: a stored response, its holder and its final body
``responses:of:<tenant>``, ``responses:open``    ids of responses by creation time; of background responses
``conversation:<id>``, ``:items``, ``:order``    a conversation, its items by id, and their order
``held:<tenant>``, ``held:<tenant>:bytes``       a tenant's stored members by expiry time; their bytes, and the sum
``conversations:of:<tenant>``                    ids of conversations by creation time
``job:<kind>:<id>``                              hash: a job, its request, status, owner and outcome, until it expires
``jobfile:<kind>:<id>``                          the input file of a job, until it expires
``jobs:<kind>:made``, ``:due``, ``:ends``        ids of jobs by creation time, due time and expiry time
``jobs:<kind>:removed``, ``:turns``              ids of jobs that were removed, for a while; tenants by their last turn
``jobs:<kind>:life``                             a random word that disappears if the store loses its data
``secret:<sha256>``                              a client secret of ``/v1/realtime``, until it expires
``history:<step>:<start>``, ``history:lead``     hash of counts within a span of time; the gateway that counts stages
``keys``, ``keys:life``                          hash of a key's SHA-256 to ``KeyRecord``; a random word as above

Channels ``plan``, ``candidates``, ``apps``, ``adapters``, ``profiles``, ``jobs:<kind>`` and ``keys`` announce changes.
Each change is one function on the server that rejects late writers, so that two writers cannot conflict. For a profile,
the last writer wins.
"""

from omnibus.store.adapters import AdapterRecord
from omnibus.store.adapters import AdapterStore as _Adapters
from omnibus.store.apps import AppConflict
from omnibus.store.apps import AppStore as _Apps
from omnibus.store.candidates import CandidateStore as _Candidates
from omnibus.store.connection import REREAD_SECONDS
from omnibus.store.dump import DumpStore as _Dump
from omnibus.store.history import Bucket
from omnibus.store.history import HistoryStore as _History
from omnibus.store.jobs import JobFileStore as _JobFiles
from omnibus.store.jobs import JobRecord, JobReview, JobRules, JobState
from omnibus.store.jobs import JobStore as _Jobs
from omnibus.store.keys import SECRET_PREFIX, ClientSecretRecord
from omnibus.store.keys import ApiKeyStore as _Keys
from omnibus.store.keys import ClientSecretStore as _Secrets
from omnibus.store.plans import PlanHistoryEntry, PlanLed, PlanProblem, PlanState, StaleEpoch, plan_mark
from omnibus.store.plans import PlanStore as _Plans
from omnibus.store.profiles import ProfileStore as _Profiles
from omnibus.store.responses import (
    NO_LIMIT,
    OVERHEAD_BYTES,
    AccountTotal,
    BackgroundPlaces,
    ConversationLimits,
    ConversationRecord,
    ItemPage,
    ResponseRecord,
    StoredResponse,
    TenantAccount,
)
from omnibus.store.responses import AccountStore as _Accounts
from omnibus.store.responses import ResponseStore as _Responses
from omnibus.store.scores import ScoreStore as _Scores
from omnibus.store.spoken_answers import SpokenAnswer
from omnibus.store.spoken_answers import SpokenAnswerStore as _Sayings
from omnibus.store.streams import StreamRecord
from omnibus.store.streams import StreamStore as _Streams

__all__ = [
    "NO_LIMIT",
    "OVERHEAD_BYTES",
    "REREAD_SECONDS",
    "SECRET_PREFIX",
    "AccountTotal",
    "AdapterRecord",
    "AppConflict",
    "BackgroundPlaces",
    "Bucket",
    "ClientSecretRecord",
    "ConversationLimits",
    "ConversationRecord",
    "ItemPage",
    "JobRecord",
    "JobReview",
    "JobRules",
    "JobState",
    "PlanHistoryEntry",
    "PlanLed",
    "PlanProblem",
    "PlanState",
    "ResponseRecord",
    "SpokenAnswer",
    "StaleEpoch",
    "Store",
    "StoredResponse",
    "StreamRecord",
    "TenantAccount",
    "plan_mark",
]


class Store(
    _Plans,
    _Candidates,
    _Scores,
    _Apps,
    _Adapters,
    _Profiles,
    _Sayings,
    _Jobs,
    _JobFiles,
    _Keys,
    _Streams,
    _Responses,
    _Secrets,
    _History,
    _Accounts,
    _Dump,
):
    """Connection to the store.

    Each command times out after ``settings.timeout`` seconds, and so does its wait for a free connection.
    """
