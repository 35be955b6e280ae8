// Reads command-line options, and tells what went wrong.

import { parseArgs } from 'node:util';

// Values of the options of a specification for node's parseArgs; those named in `required` must be given.
export function readArguments(options, required) {
  const { values } = parseArgs({ options, args: joinValues(process.argv.slice(2)), strict: true });
  for (const name of required) {
    if (values[name] === undefined) {
      throw new Error(`--${name} is missing`);
    }
  }
  return values;
}

// Options joined to their values, since parseArgs takes `--from=-15m` but not `--from -15m`.
function joinValues(words) {
  const joined = [];
  for (let i = 0; i < words.length; i += 1) {
    const takesNext = /^--[a-z-]+$/.test(words[i]) && i + 1 < words.length && !words[i + 1].startsWith('--');
    joined.push(takesNext ? `${words[i]}=${words[(i += 1)]}` : words[i]);
  }
  return joined;
}

// Runs `main` and ends with its message and status 1 if it fails.
export async function run(main) {
  try {
    await main();
  } catch (error) {
    console.error(`error: ${error.message}`);
    process.exitCode = 1;
  }
}
