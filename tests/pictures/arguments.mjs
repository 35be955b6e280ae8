// Reads command-line options and reports errors.

import { parseArgs } from 'node:util';

// Values of the options, which are specified as for node's parseArgs. Those in `required` must be given.
export function readArguments(options, required) {
  const { values } = parseArgs({ options, args: joinValues(process.argv.slice(2)), strict: true });
  for (const name of required) {
    if (values[name] === undefined) {
      throw new Error(`--${name} is missing`);
    }
  }
  return values;
}

// Joins options to their values, since parseArgs accepts `--from=-15m` but not `--from -15m`.
function joinValues(words) {
  const joined = [];
  for (let i = 0; i < words.length; i += 1) {
    const takesNext = /^--[a-z-]+$/.test(words[i]) && i + 1 < words.length && !words[i + 1].startsWith('--');
    joined.push(takesNext ? `${words[i]}=${words[(i += 1)]}` : words[i]);
  }
  return joined;
}

// Runs `main`. If it fails, prints its message and exits with status 1.
export async function run(main) {
  try {
    await main();
  } catch (error) {
    console.error(`error: ${error.message}`);
    process.exitCode = 1;
  }
}
