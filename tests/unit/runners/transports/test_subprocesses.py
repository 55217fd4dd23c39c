"""How replies travel between processes, and how long the transport waits for more of them."""

import marshal
from typing import Any

import numpy as np
import pytest

from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.transports import subprocesses
from rookery.runners.transports.subprocesses import Linger, _unpacked
from rookery.runners.transports.worker import Command, packed

STEP = Command.STEP


def sent(reply: Any) -> tuple[Any, int]:
    """Send a reply; also return the number of its parts."""
    parts = marshal.loads(marshal.dumps(packed(7, reply, STEP.value)))
    assert parts[0] == 7
    return _unpacked(parts, STEP), len(parts)


@pytest.mark.parametrize("dtype", ["?", "uint8", "int16", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0, 2)])
def test_an_ordinary_step_travels_in_parts_and_arrives_as_it_was(dtype: str, shape: tuple[int, ...]) -> None:
    obs = np.asfortranarray(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype))
    (arrived, *rest), num_parts = sent((obs, 1.5, True, False, {}))
    assert (arrived.dtype, arrived.shape) == (obs.dtype, obs.shape)
    np.testing.assert_array_equal(arrived, obs)
    assert (rest, num_parts) == ([1.5, True, False, {}], 7)


@pytest.mark.parametrize(
    "reply",
    [
        (np.ones(2, ">f4"), 1.0, False, False, {}),
        (np.array(["a"]), 1.0, False, False, {}),
        (np.float32(3), 1.0, False, False, {}),
        ({"a": np.ones(2)}, 1.0, False, False, {}),
        (np.ones(2), np.float64(1), False, False, {}),
        (np.ones(2), 1, False, False, {}),
        (np.ones(2), 1.0, np.bool_(False), False, {}),
        (np.ones(2), 1.0, False, 0, {}),
        (np.ones(2), 1.0, False, False, {"lives": 3}),
        (np.ones(2), 1.0, False, False, None),
        (np.ones(2), {}),
        [np.ones(2), 1.0, False, False, {}],
        Failed(FaultKind.RAISED, Phase.STEP, "it broke"),
    ],
)
def test_any_other_reply_is_pickled_and_keeps_its_types(reply: Any) -> None:
    arrived, num_parts = sent(reply)
    assert num_parts == 2
    assert type(arrived) is type(reply)
    assert repr(arrived) == repr(reply)
    if isinstance(reply, tuple):
        assert [type(part) for part in arrived] == [type(part) for part in reply]
        assert getattr(arrived[0], "dtype", None) == getattr(reply[0], "dtype", None)


class FakeClock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(subprocesses.time, "monotonic", lambda: self.now)


def test_the_transport_waits_for_others_as_long_as_the_policy_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, linger = FakeClock(monkeypatch), Linger()
    for seconds in [0.0002] * 5 + [60.0]:  # at last, the caller learns
        linger.note_replies()
        clock.now += seconds
        linger.note_act()
    assert linger.seconds == pytest.approx(0.0002 * Linger.GROWTH)


def test_the_transport_waits_seldom_for_envs_that_do_not_come_in_time() -> None:
    def num_waits(all_came: Any, linger: Linger) -> int:
        count = 0
        for number in range(320):
            if linger.begin():
                linger.end(all_came(number))
                count += 1
        return count

    assert num_waits(lambda number: number % 2 == 0, Linger()) == 320
    slow = Linger()
    num_waits(lambda number: False, slow)
    assert num_waits(lambda number: False, slow) == 320 // Linger.WAITS_PER_TRIAL
    num_waits(lambda number: True, slow)
    assert num_waits(lambda number: True, slow) == 320
