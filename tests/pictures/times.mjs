// Times and steps in milliseconds, computed as in Grafana.

const UNITS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

// Grafana's roundInterval, as pairs: an interval below the limit is rounded to the second value.
const ROUNDED = [
  [10, 1], [15, 10], [35, 20], [75, 50], [150, 100], [350, 200], [750, 500], [1_500, 1_000], [3_500, 2_000],
  [7_500, 5_000], [12_500, 10_000], [17_500, 15_000], [25_000, 20_000], [45_000, 30_000], [90_000, 60_000],
  [210_000, 120_000], [450_000, 300_000], [750_000, 600_000], [1_050_000, 900_000], [1_500_000, 1_200_000],
  [2_700_000, 1_800_000], [5_400_000, 3_600_000], [9_000_000, 7_200_000], [16_200_000, 10_800_000],
  [32_400_000, 21_600_000], [86_400_000, 43_200_000],
];

// Milliseconds of a duration such as 30s or 15m.
export function parseDuration(text) {
  const match = /^(\d+(?:\.\d+)?)([smhd])$/.exec(text);
  if (!match) {
    throw new Error(`${text} is not a duration such as 30s, 15m or 1h`);
  }
  return Number(match[1]) * UNITS[match[2]];
}

// A point in time: now, a duration before now such as -15m, seconds since 1970, or an ISO time.
export function parseTime(text, now) {
  if (text === 'now') {
    return now;
  }
  if (text.startsWith('-')) {
    return now - parseDuration(text.slice(1));
  }
  const time = /^\d+(\.\d+)?$/.test(text) ? Number(text) * 1_000 : Date.parse(text);
  if (Number.isNaN(time)) {
    throw new Error(`${text} is not a time: now, -15m, seconds since 1970 or 2026-01-31T12:00:00Z`);
  }
  return time;
}

// The time between two points of a query over `range` for a panel that is `points` wide.
export function queryInterval(range, points, scrapeInterval) {
  const exact = range / points;
  const rounded = ROUNDED.find(([limit]) => exact < limit)?.[1] ?? UNITS.d;
  return Math.max(rounded, scrapeInterval);
}

// A duration in PromQL.
export function formatDuration(milliseconds) {
  return milliseconds % 1_000 === 0 ? `${milliseconds / 1_000}s` : `${milliseconds}ms`;
}
