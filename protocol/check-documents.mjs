// Validates openapi.json and asyncapi.json in a directory.
import { readFileSync } from "node:fs";
import { Validator } from "@seriousme/openapi-schema-validator";
import { Parser } from "@asyncapi/parser";

const read = (name) => readFileSync(`${process.argv[2]}/${name}`, "utf8");
const faults = [];

const validator = new Validator();
const openapi = await validator.validate(JSON.parse(read("openapi.json")));
if (!openapi.valid || validator.version !== "3.1") faults.push(`openapi.json, version ${validator.version}`, openapi.errors);

const wrong = 1; // severities: 0 is an error, 1 a warning
for (const d of await new Parser().validate(read("asyncapi.json"))) if (d.severity <= wrong) faults.push(["asyncapi.json", d.message, d.path]);

for (const f of faults) console.error(JSON.stringify(f));
if (faults.length > 0) process.exit(1);
console.log("documents: openapi.json and asyncapi.json are valid");
