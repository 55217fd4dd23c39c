// A client of Rookery's policy server for browsers, Node and Deno. Copy this file.
//
//   const client = new Client("http://127.0.0.1:8642", {token});
//   const episode = await client.start();
//   const action = await episode.act(obs);
//   episode.reward(1);
//   await episode.end(lastObs);

export class RefusedError extends Error {
  constructor(status, error = {}) {
    super(`${error.code}: ${error.message}${error.where ? ` (at ${error.where})` : ""}`);
    Object.assign(this, {status, code: error.code, where: error.where});
  }
}
// The episode is over on the server: start another.
export class EpisodeLostError extends RefusedError {}
// The server did not answer for `patience` seconds.
export class ServerGoneError extends Error {}

const MAY_BE_REPEATED = [408, 429, 503], LOST = [404, 410];
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

export class Client {
  constructor(url, {token, patience = 60} = {}) {
    this.url = url.replace(/\/+$/, "");
    this.patience = patience;
    this.headers = {"Content-Type": "application/json", ...(token && {Authorization: `Bearer ${token}`})};
  }

  // Options are the fields of POST /v1/episodes, such as mode and lease.
  async start(options = {}) {
    const id = options.episode ?? crypto.randomUUID();
    return new Episode(this, await this.request("POST", "/v1/episodes", {...options, episode: id}));
  }

  // Returns {actions, version, carry} for a batch of observations.
  act(obs, {policy = "default", explore = false, carry} = {}) {
    return this.request("POST", `/v1/policies/${encodeURIComponent(policy)}/act`, {obs, explore, carry});
  }

  async request(method, path, body) {
    let failedAt = null, problem;
    for (let delay = 0.05; ; delay = Math.min(2 * delay, 2)) {
      try {
        const options = {method, headers: this.headers, body: body && JSON.stringify(body)};
        const response = await fetch(this.url + path, options);
        const answer = await response.json().catch(() => ({}));
        if (response.ok) return answer;
        const isLost = LOST.includes(response.status) && path.startsWith("/v1/episodes/");
        problem = new (isLost ? EpisodeLostError : RefusedError)(response.status, answer.error);
      } catch (error) {
        problem = new ServerGoneError(`${this.url} does not answer: ${error.message}`);
      }
      if (problem.status && !MAY_BE_REPEATED.includes(problem.status)) throw problem;
      const now = Date.now() / 1000;
      if (failedAt === null || problem.code === "pending") failedAt = now;
      if (now - failedAt >= this.patience) throw problem;
      await sleep(delay * (0.5 + Math.random() / 2));
    }
  }
}

export class Episode {
  constructor(client, started) {
    this.path = `/v1/episodes/${started.episode}`;
    Object.assign(this, {client, started, id: started.episode, seq: 0, pending: {}});
  }

  async act(obs) {
    return (await this.step({obs})).action;
  }

  // Reports an action that the simulator chose itself.
  log(obs, action, logProb) {
    return this.step({obs, action, log_prob: logProb});
  }

  // Adds a reward for the last action; it is sent with the next step.
  reward(reward) {
    this.pending.reward = (this.pending.reward ?? 0) + reward;
  }

  end(obs, {truncated = false} = {}) {
    return this.step({obs, [truncated ? "truncated" : "terminated"]: true});
  }

  leave({keep = true} = {}) {
    return this.client.request("DELETE", this.path + (keep ? "" : "?keep=false"));
  }

  // Several agents: step({agents: {left: {obs, reward}, right: {...}}}) returns {actions}.
  async step(fields) {
    const request = this.client.request("POST", `${this.path}/step`, {seq: this.seq, ...this.pending, ...fields});
    const problem = await request.then(() => null, (error) => error);
    // After a policy fault there is no action, but the server has taken the step.
    if (!problem || problem.code === "policy_fault") Object.assign(this, {seq: this.seq + 1, pending: {}});
    return request;
  }
}
