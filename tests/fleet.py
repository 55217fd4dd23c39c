"""Many HTTP clients in one process, each with a connection of its own.

    python -m tests.fleet URL NUM_CLIENTS NUM_STEPS NUM_ENDLESS LEASE

Each client plays an episode; then all begin episodes with this lease that they never end, one after the other; then
each plays again. After each of these parts, a line of JSON tells how often each status was answered.
"""

import asyncio
import json
import random
import re
import sys
from collections import Counter
from typing import Any

AGAIN = (429, 503)
"""The statuses after which a request is sent again."""
PAUSE = 0.5


class Connection:
    """A connection that is kept, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, url: str) -> "Connection":
        host, port = url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the content of the answer."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        assert length is not None
        return int(answer[9:12]), json.loads(await self._reader.readexactly(int(length[1])))

    def close(self) -> None:
        self._writer.close()


class Fleet:
    """All clients of this process."""

    def __init__(self, connections: list[Connection]) -> None:
        self.connections = connections
        self.counts: Counter[int] = Counter()

    async def post(self, connection: Connection, path: str, body: dict[str, Any]) -> Any:
        """Ask until the server does not want to be asked again."""
        while True:
            status, answer = await connection.post(path, body)
            self.counts[status] += 1
            if status not in AGAIN:
                return answer
            await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))

    async def play(self, connection: Connection, number: int, num_steps: int) -> None:
        """Play an episode: observation t is 1000 number + t, the reward of step t is t."""
        await self.post(connection, "/v1/episodes", {"episode": str(number)})
        path = f"/v1/episodes/{number}/step"
        for t in range(num_steps):
            step = {"seq": t, "obs": [1000 * number + t], "reward": max(0, t - 1)}
            answer = await self.post(connection, path, step)
            assert answer["action"] == t % 2, answer
        last = {"seq": num_steps, "obs": [1000 * number + num_steps], "reward": num_steps - 1, "truncated": True}
        assert (await self.post(connection, path, last))["ended"]

    async def begin(self, connection: Connection, numbers: range, lease: float) -> None:
        """Begin episodes and never end them; every other one asks for one action."""
        for number in numbers:
            name = f"endless-{number}"
            await self.post(connection, "/v1/episodes", {"episode": name, "lease": lease})
            if number % 2:
                await self.post(connection, f"/v1/episodes/{name}/step", {"seq": 0, "obs": [0]})

    def report(self) -> None:
        """Print the counts since the last report."""
        print(json.dumps(self.counts), flush=True)
        self.counts.clear()


async def main(url: str, num_clients: int, num_steps: int, num_endless: int, lease: float) -> None:
    fleet = Fleet([await Connection.open(url) for _ in range(num_clients)])
    numbered = list(enumerate(fleet.connections))
    await asyncio.gather(*(fleet.play(connection, index, num_steps) for index, connection in numbered))
    fleet.report()
    endless = (range(index, num_endless, num_clients) for index in range(num_clients))
    begun = (fleet.begin(*pair, lease) for pair in zip(fleet.connections, endless, strict=True))
    await asyncio.gather(*begun)
    fleet.report()
    await asyncio.gather(*(fleet.play(connection, num_clients + index, num_steps) for index, connection in numbered))
    fleet.report()
    for connection in fleet.connections:
        connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])))
