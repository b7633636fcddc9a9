"""The store on Redis or Valkey: plans by epoch, the registered apps, profiles of models, and what was said aloud.

Keys, under ``<prefix>:``

``plan:epoch``, ``plan:<n>``, ``plan:history``   current number, plan documents, sorted set of epochs
``plan:staged``, ``plan:lead``                   the plan that is to follow, and the planner that sees to it
``plan:pin``                                     the epoch that is to be served and no other
``plan:problems``                                hash of who says so to why the plan is not what it should be
``apps``                                         hash of name to ``AppRecord``
``apps:life``                                    a random word that is gone when the store has lost everything
``app:source:<sha256>``                          text of an uploaded app
``profiles``                                     hash of model to ``ModelProfile``
``audio:<id>``                                   a spoken answer, until it expires

Channels ``plan``, ``apps`` and ``profiles`` announce changes. Each change is one function on the server that refuses
whoever is late, so that two writers cannot cross; a profile is the last writer's.
"""

from omnibus.store.apps import AppConflict
from omnibus.store.apps import Apps as _Apps
from omnibus.store.connection import REREAD
from omnibus.store.plans import Past, PlanLed, PlanProblem, StaleEpoch, Stand, mark
from omnibus.store.plans import Plans as _Plans
from omnibus.store.profiles import Profiles as _Profiles
from omnibus.store.said import Said
from omnibus.store.said import Sayings as _Sayings

__all__ = ["REREAD", "AppConflict", "Past", "PlanLed", "PlanProblem", "Said", "StaleEpoch", "Stand", "Store", "mark"]


class Store(_Plans, _Apps, _Profiles, _Sayings):
    """A connection to the store. Every call is bounded by ``settings.timeout`` seconds."""
