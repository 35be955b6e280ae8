// Queries a Prometheus.

// Result of a query over a range of times, in milliseconds.
export async function queryRange(server, expr, { from, to, step }) {
  return ask(server, 'query_range', { query: expr, start: from / 1_000, end: to / 1_000, step: step / 1_000 });
}

// Result of a query at a time, in milliseconds.
export async function queryInstant(server, expr, time) {
  return ask(server, 'query', { query: expr, time: time / 1_000 });
}

async function ask(server, endpoint, parameters) {
  const url = new URL(`api/v1/${endpoint}`, server.endsWith('/') ? server : `${server}/`);
  url.search = new URLSearchParams(parameters);
  let response;
  try {
    response = await fetch(url);
  } catch (error) {
    throw new Error(`${server} does not answer: ${error.cause?.message ?? error.message}`);
  }
  const body = await response.text();
  if (!response.ok) {
    throw new Error(`${parameters.query}\nHTTP status ${response.status}: ${body}`);
  }
  return JSON.parse(body).data.result;
}
