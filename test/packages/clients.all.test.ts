/**
 * Real clients against a real server: the server on this Node, the clients on Node 22, which several of them need, and on
 * Python. Their project in test/clients is installed into a temporary folder.
 */
import { execFile, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ALL_CASES, LONG_CASES } from '../support/matrix.ts';
import { openaiTypesProgram } from '../support/openai-types.ts';
import { type ServerProcess, startServer } from '../support/serve.ts';
import { describeWithFile, smolModel } from '../support/shared.ts';
import { npm, root } from './package-project.ts';

const run = promisify(execFile);
const apiKey = 'a-key-of-a-test';
const MINUTES = 60_000;

/** The clients' project, and its Node. */
function installClients(): { folder: string; node: string } {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-clients-'));
  cpSync(fileURLToPath(new URL('clients', import.meta.url)), folder, { recursive: true });
  npm(folder, 'install', '--no-save', '--prefer-offline', '--ignore-scripts', '--no-audit', '--no-fund');
  symlinkSync(root, join(folder, 'node_modules/kvasir'));
  return { folder, node: join(folder, `node_modules/node-${process.platform}-${process.arch}/bin/node`) };
}

/** Whether Python is here; in CI it must be. */
const hasPython = Boolean(process.env.CI) || spawnSync('python3', ['-c', 'import ensurepip']).status === 0;

const page = readFileSync(join(root, 'docs/clients.md'), 'utf8');
const allExamples = [...page.matchAll(/^```(js|sh|python)\n([\s\S]*?)^```$/gm)].map(([, language, code], i) => {
  const title = page
    .slice(0, page.indexOf(code))
    .match(/^## (.*)$/gm)
    ?.at(-1);
  return { name: `${i}: ${title?.slice(3)}`, file: `example-${i}.${language}`, code };
});
const examples = allExamples.filter(({ file }) => hasPython || !file.endsWith('.python'));

describe.skipIf(!ALL_CASES)('clients', () => {
  describeWithFile(smolModel, 'of a server with SmolLM2', model => {
    let server: ServerProcess;
    let project: { folder: string; node: string };
    beforeAll(async () => {
      project = installClients();
      expect(existsSync(project.node)).toBe(true);
      server = await startServer(
        model,
        '--api-key',
        apiKey,
        '--served-name',
        'smol,model.gguf',
        '--strict-model',
        '--context',
        '4k',
      );
      symlinkSync(model, join(project.folder, 'model.gguf'));
    }, 5 * MINUTES);
    afterAll(async () => {
      await server?.kill();
      if (project) await rm(project.folder, { recursive: true });
    }, 5 * MINUTES);
    const runScript = (file: string, calls = 0, program = project.node) => {
      const own = { KVASIR_URL: server.url, KVASIR_KEY: apiKey, KVASIR_MODEL: model, KVASIR_CALLS: `${calls}` };
      const env = { ...process.env, ...own };
      return run(program, [file], { cwd: project.folder, env });
    };

    let pythonPath: Promise<string> | undefined;
    const installPython = async (): Promise<string> => {
      await run('python3', ['-m', 'venv', 'venv'], { cwd: project.folder });
      const path = join(project.folder, 'venv/bin/python');
      const install = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '-r', 'requirements.txt'];
      await run(path, install, { cwd: project.folder });
      return path;
    };
    /** A Python with the packages of requirements.txt. */
    const python = () => {
      pythonPath ??= installPython();
      return pythonPath;
    };

    it('run on Node 22', async () => {
      expect((await run(project.node, ['--version'])).stdout).toMatch(/^v22\./);
    });

    it.each([
      ['openai', 10],
      ['anthropic', LONG_CASES ? 10 : 3],
      ['ai-sdk', LONG_CASES ? 10 : 3],
      ['langchain', LONG_CASES ? 10 : 3],
      ['in-process', LONG_CASES ? 10 : 3],
      ['ollama', LONG_CASES ? 10 : 3],
    ] as const)(
      '%s: chat, streams, tools, structured output, errors, %i tool calls in a row',
      async (name, calls) => {
        await runScript(`${name}.js`, calls);
      },
      10 * MINUTES,
    );

    it(
      'in-process, with the AI SDK 6 on this Node, also 20',
      async () => {
        await runScript('in-process-ai6.js', 2, process.execPath);
      },
      10 * MINUTES,
    );

    it.skipIf(!hasPython)(
      'openai for Python: chat, streams, tools, structured output, responses, errors',
      async () => {
        await runScript('openai_client.py', 0, await python());
      },
      10 * MINUTES,
    );

    it(
      "answers, errors and every event have the types of OpenAI's document",
      async () => {
        const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
        const program = await openaiTypesProgram((path, body) =>
          fetch(server.url + path, { method: 'POST', body: JSON.stringify(body), headers }),
        );
        writeFileSync(join(project.folder, 'openai-types.ts'), program);
        const flags = ['--noEmit', '--strict', '--skipLibCheck', '--module', 'nodenext', '--target', 'es2022'];
        const check = run(join(root, 'node_modules/.bin/tsc'), [...flags, 'openai-types.ts'], { cwd: project.folder });
        expect(
          await check.then(
            ({ stdout }) => stdout,
            ({ stdout }) => stdout,
          ),
        ).toBe('');
      },
      5 * MINUTES,
    );

    it.each(examples)(
      'the example $name of docs/clients.md runs as printed',
      async ({ file, code }) => {
        const key = code.includes('apiKey') ? code.replaceAll("'none'", `'${apiKey}'`) : code;
        // Examples without a key are for a server that needs none: here they get one.
        const keyed = key
          .replace('"none"', `"${apiKey}"`)
          .replace("name: 'kvasir',", `name: 'kvasir', apiKey: '${apiKey}',`)
          .replace('new Ollama({', `new Ollama({ headers: { authorization: 'Bearer ${apiKey}' },`)
          .replaceAll("-H 'content-type", `-sS --fail-with-body -H 'authorization: Bearer ${apiKey}' -H 'content-type`);
        writeFileSync(join(project.folder, file), keyed.replaceAll('http://127.0.0.1:8080', server.url));
        const program = file.endsWith('.python') ? await python() : undefined;
        const { stdout } = file.endsWith('.sh')
          ? await run('bash', ['-e', file], { cwd: project.folder })
          : await runScript(file, 0, program);
        expect(stdout.trim()).not.toBe('');
      },
      5 * MINUTES,
    );
  });
});
