"""A meeting that is lost and started again: nodes find it, and it knows what it knew."""

from __future__ import annotations

import gc
import time

import pytest

from paceline.teams.meeting import Guest, MeetingPoint, MeetingServer, MeetingSettings, Presence

SETTINGS = MeetingSettings(num_nodes=1, silence_s=1.0, timeout_s=20.0)
OWN = Guest(
    replica="a", node=0, num_workers=1, host="host", born_s=0.0, round=0, kind="form", groups=""
)


def test_a_meeting_that_was_started_again_is_found() -> None:
    pytest.importorskip("torchft")
    server = MeetingServer(SETTINGS)
    point = MeetingPoint(server.address)
    presence = Presence(point, OWN.replica)
    try:
        before = presence.ask(own=OWN, timeout_s=10.0)
        presence.tell("sizes", "[1]")
        server.close()
        del server
        gc.collect()  # the store ends with its last holder
        with MeetingServer(SETTINGS, port=point.port):
            after = presence.ask(own=OWN, timeout_s=15.0)
            assert [guest.node for guest in after.guests] == [0]
            assert after.name != before.name
            store, deadline_s = point.store(), time.monotonic() + 10.0
            while not store.check(["sizes"]) and time.monotonic() < deadline_s:
                time.sleep(0.1)
            assert store.get("sizes") == b"[1]"
    finally:
        presence.close()
