"""Every transport of environments keeps the same promises, wherever its envs live."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.transports.local import LocalTransport
from rookery.runners.transports.subprocesses import ProcessTransport
from rookery.runners.transports.transport import EnvCallError, EnvTransport
from rookery.testing.misbehaving_envs import (
    BadCloseEnv,
    CountingEnv,
    FaultyEnv,
    FlakyEnv,
    print_a_lot,
    raise_error,
    raise_system_exit,
    raise_unpicklable,
    raise_without_arguments,
)

MakeTransport = Callable[..., EnvTransport]

GROUPS: dict[str, Callable[..., EnvTransport]] = {
    "local": LocalTransport,
    "a process each": ProcessTransport,
    "two in a process": partial(ProcessTransport, envs_per_process=2),
}


@pytest.fixture(params=GROUPS)
def make_transport(request: pytest.FixtureRequest) -> Iterator[MakeTransport]:
    """Build transports of the kind under test from functions that make envs; they are closed when the test is over."""
    made: list[EnvTransport] = []

    def make(*make_env_fns: Callable[[], Any]) -> EnvTransport:
        made.append(GROUPS[request.param](make_env_fns))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def reset_all(transport: EnvTransport) -> dict[int, Any]:
    for index in range(transport.num_envs):
        transport.send_reset(index, seed=index)
    return transport.receive(range(transport.num_envs))


def step_all(transport: EnvTransport) -> dict[int, Any]:
    transport.send_steps(range(transport.num_envs), [0] * transport.num_envs)
    return transport.receive(range(transport.num_envs))


def numbers_of_steps(replies: dict[int, Any]) -> dict[int, int]:
    """Read the observations of counting envs."""
    return {index: int(reply[0][0]) for index, reply in replies.items() if not isinstance(reply, Failed)}


def test_trajectories_equal_those_of_the_bare_envs_bit_for_bit(make_transport: MakeTransport) -> None:
    transport = make_transport(*[lambda: gymnasium.make("CartPole-v1")] * 3)
    bare = [gymnasium.make("CartPole-v1") for _ in range(3)]
    replies = reset_all(transport)
    expected: list[Any] = [env.reset(seed=index) for index, env in enumerate(bare)]
    rng = np.random.default_rng(0)
    for _ in range(40):
        for index in range(3):
            assert replies[index][0].tobytes() == expected[index][0].tobytes()
            assert replies[index][1:] == expected[index][1:]
            assert replies[index][0].dtype == np.float32
        running = [index for index in range(3) if not any(expected[index][2:4])]
        actions = [int(action) for action in rng.integers(0, 2, len(running))]
        transport.send_steps(running, actions)
        replies |= transport.receive(running)
        for index, action in zip(running, actions, strict=True):
            expected[index] = bare[index].step(action)


def test_the_description_is_that_of_the_first_env(make_transport: MakeTransport) -> None:
    transport = make_transport(lambda: gymnasium.make("CartPole-v1"), lambda: CountingEnv(3))
    described, env = transport.describe(), gymnasium.make("CartPole-v1")
    assert described.name == "CartPole-v1"
    assert (described.observation_space, described.action_space) == (env.observation_space, env.action_space)
    assert described.metadata["render_modes"] == env.metadata["render_modes"]
    assert described.max_episode_steps == 500
    assert described.possible_agents is None


def test_envs_that_raise_fail_alone_and_say_why(make_transport: MakeTransport) -> None:
    errors = {
        raise_error: "ValueError('bad leg')",
        raise_without_arguments: "RuntimeError()",
        raise_unpicklable: "UnpicklableError('bad leg'",
        raise_system_exit: "SystemExit(3)",
    }
    transport = make_transport(CountingEnv, *[partial(FaultyEnv, fault_fn, at_step=1) for fault_fn in errors])
    reset_all(transport)
    assert numbers_of_steps(step_all(transport)) == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}
    replies = step_all(transport)
    assert numbers_of_steps(replies) == {0: 2}
    for index, (fault_fn, error) in enumerate(errors.items(), start=1):
        failed = replies[index]
        assert (failed.kind, failed.phase) == (FaultKind.RAISED, Phase.STEP)
        assert failed.error.startswith(error)
        assert f"in {fault_fn.__name__}" in failed.traceback


def test_a_rebuilt_env_starts_again_and_its_neighbors_go_on(make_transport: MakeTransport) -> None:
    transport = make_transport(*[CountingEnv] * 3)
    reset_all(transport)
    step_all(transport)
    transport.rebuild(0)
    transport.send_reset(0, seed=7)
    transport.send_steps([1, 2], [0, 0])
    assert numbers_of_steps(transport.receive(range(3))) == {0: 0, 1: 2, 2: 2}


def test_each_rebuild_after_a_failed_reset_is_one_construction(make_transport: MakeTransport, tmp_path: Path) -> None:
    log = tmp_path / "log"
    transport = make_transport(lambda: FlakyEnv(log, num_failures=3))
    phases = []
    while isinstance(reply := reset_all(transport)[0], Failed):
        phases.append(reply.phase)
        transport.rebuild(0)
    assert phases == [Phase.RESET] * 3
    assert log.read_text().split() == ["make", "reset"] * 4


def test_an_env_that_cannot_be_built_says_so_in_place_of_its_reset(
    make_transport: MakeTransport, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    transport = make_transport(CountingEnv, lambda: FlakyEnv(log, num_failures=2, fails_in="make"))
    for _ in range(2):
        replies = reset_all(transport)
        assert numbers_of_steps(replies) == {0: 0}
        assert (replies[1].kind, replies[1].phase) == (FaultKind.RAISED, Phase.MAKE)
        assert replies[1].error == "RuntimeError('make does not work yet')"
        assert isinstance(step_all(transport)[1], Failed)
        transport.rebuild(1)
    assert numbers_of_steps(reset_all(transport)) == {0: 0, 1: 0}
    assert log.read_text().split().count("make") == 3


def test_describing_an_env_that_cannot_be_built_raises_with_its_traceback(make_transport: MakeTransport) -> None:
    transport = make_transport(lambda: FaultyEnv(raise_error, at_make=True))
    with pytest.raises(EnvCallError, match=r"(?s)of env 0 failed \(raised\): ValueError\('bad leg'\).*in raise_error"):
        transport.describe()


def test_a_new_request_voids_the_reply_to_an_earlier_one(make_transport: MakeTransport) -> None:
    transport = make_transport(CountingEnv)
    reset_all(transport)
    for _ in range(3):
        transport.send_steps([0], [0])
    transport.send_reset(0, seed=None)
    obs, info = transport.receive([0])[0]
    assert (obs, info) == (np.zeros(1), {})
    assert transport.receive() == {}


def test_replies_that_were_not_waited_for_come_with_the_next(make_transport: MakeTransport) -> None:
    transport = make_transport(*[CountingEnv] * 3)
    for index in range(3):
        transport.send_reset(index, seed=None)
    heard = transport.receive([1])
    assert 1 in heard
    assert (heard | transport.receive([index for index in range(3) if index not in heard])).keys() == {0, 1, 2}


def test_waiting_for_an_env_that_was_asked_nothing_is_an_error(make_transport: MakeTransport) -> None:
    transport = make_transport(CountingEnv, CountingEnv)
    transport.send_reset(0, seed=None)
    with pytest.raises(InvalidInputError, match="env 1 was sent no request"):
        transport.receive([0, 1])


def test_methods_and_functions_are_called_where_the_env_is(make_transport: MakeTransport) -> None:
    transport = make_transport(
        CountingEnv, lambda: FaultyEnv(raise_error, at_step=1), lambda: gymnasium.make("CartPole-v1")
    )
    reset_all(transport)
    step_all(transport)
    assert transport.call(2, "get_wrapper_attr", "x_threshold") == 2.4
    assert transport.apply(0, lambda env: env.num_steps + 10) == 11
    assert transport.render(0) is None
    with pytest.raises(EnvCallError, match=r"step\(\) of env 1 failed \(raised\): ValueError\('bad leg'\)"):
        transport.call(1, "step", 0)
    assert numbers_of_steps(step_all(transport))[0] == 2, "a call is no request of its own"


def test_an_env_is_drawn_where_it_is(make_transport: MakeTransport) -> None:
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)

    class Drawn(CountingEnv):
        def render(self) -> Any:
            return picture

    drawn = make_transport(Drawn).render(0)
    assert drawn is not None
    assert drawn.dtype == np.uint8
    np.testing.assert_array_equal(drawn, picture)


def test_an_env_that_prints_a_lot_makes_no_difference(
    make_transport: MakeTransport, capfd: pytest.CaptureFixture
) -> None:
    transport = make_transport(lambda: FaultyEnv(print_a_lot, at_step=0))
    reset_all(transport)
    assert numbers_of_steps(step_all(transport)) == {0: 1}
    printed = capfd.readouterr()
    assert printed.out.count("x") == printed.err.count("x") == 1_000_000


def test_an_env_that_does_not_let_itself_be_closed_is_replaced_and_closed_all_the_same(
    make_transport: MakeTransport,
) -> None:
    transport = make_transport(BadCloseEnv, BadCloseEnv)
    reset_all(transport)
    transport.rebuild(0)
    assert numbers_of_steps(reset_all(transport)) == {0: 0, 1: 0}
    transport.close()
    transport.close()


def test_closing_closes_every_env(make_transport: MakeTransport, tmp_path: Path) -> None:
    class Closing(CountingEnv):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

        def close(self) -> None:
            (tmp_path / str(self.index)).touch()

    transport = make_transport(*[partial(Closing, index) for index in range(3)])
    reset_all(transport)
    transport.close()
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2"}


def test_closed_envs_fail_and_stay_closed(make_transport: MakeTransport) -> None:
    transport = make_transport(CountingEnv)
    reset_all(transport)
    transport.close()
    failed = reset_all(transport)[0]
    assert isinstance(failed, Failed)
    assert failed.error == "the envs were closed"
    with pytest.raises(EnvCallError, match="closed"):
        transport.render(0)
